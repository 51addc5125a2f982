//! door
fn main() {}

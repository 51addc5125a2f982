//! Owns one fact for cargo: migrations are compiled in, so a new file among them is a reason to build again.
//! Must never know: anything of the crate itself.

fn main() {
    println!("cargo::rerun-if-changed=migrations");
}

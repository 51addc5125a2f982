//! cli
pub mod emulator;

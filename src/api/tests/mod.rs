//! Owns the proofs that take more than one file of this room.
//! Must never know: sockets; those have tests of their own.

mod any_bytes;

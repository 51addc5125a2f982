//! Owns the signals that end the process.
//! Must never know: what has to be drained.

//! Owns the log subscriber.
//! Must never know: what is logged.

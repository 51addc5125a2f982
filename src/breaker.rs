//! Owns the breaker.
//! Must never know: what is being called.

//! api

pub mod keys;

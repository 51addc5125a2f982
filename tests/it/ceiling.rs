//! ceiling

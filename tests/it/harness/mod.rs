//! Owns the real servers tests run against. A server that is missing fails the test with the command that installs it.

pub mod beside;
pub mod capture;
pub mod logs;
pub mod metadata;
pub mod own_postgres;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod service;
pub mod together;
pub mod wire;

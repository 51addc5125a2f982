//! Placeholder: another branch holds how a command finds the service.

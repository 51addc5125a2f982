//! store_conformance

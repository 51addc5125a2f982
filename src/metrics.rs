//! Owns the metrics registry.
//! Must never know: which metrics there are; rooms register their own.

//! Owns what is written down: outcomes flushed, fan-outs settled, the line.
//! Must never know: how anything is sent, or HTTP.

pub mod buffer;
pub mod flush;
pub mod judgement;
pub mod line;
pub mod metrics;
pub mod retention;
pub mod settle;

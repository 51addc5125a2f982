//! Owns what can be known before Saturday: models of limiters, fan-outs and a whole season, as arithmetic, each beside a
//! small simulation of the same thing.
//! Must never know: files, clocks, terminals, or how the service does it; chance comes from a seed, so that the same
//! question always has the same answer.

pub mod course;
pub mod fanout;
pub mod fixtures;
pub mod habits;
pub mod latency;
pub mod limiter;
pub mod loss;
pub mod measured;
pub mod plot;
pub mod poisson;
pub mod quota;
pub mod rush;
pub mod sample;
pub mod season;
pub mod split;
pub mod trial;

//! Owns the shapes of upkeep: what is left to settle and to report, what retention deleted, what a sweep asks for and
//! where it got to.
//! Must never know: SQL.

use super::{FreezeJob, Leap, Settled, Withheld};
use crate::domain::event::Event;
use crate::domain::ids::{DeviceKey, FanoutId};

/// What the sweeper found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Swept {
    /// Complete, to be settled.
    pub complete: Vec<FanoutId>,
    /// Settled, line not marked as written.
    pub unreported: Vec<Settled>,
    /// The last leap of each platform whose devices were not judged since.
    pub leaps: Vec<Leap>,
}

/// What became of a step of retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purge {
    /// Another instance is at it.
    Elsewhere,
    /// So many rows were deleted; 0 = nothing is old any more.
    Deleted(u64),
}

/// A sweep about to begin.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSweep {
    /// What stands in for its event: a sweep has no news.
    pub event: Event,
    /// Devices after this key are asked about, in order.
    pub after: DeviceKey,
    /// Most attempts, and so most devices.
    pub max_attempts: u64,
    /// Share of dead devices, in per cent, that whoever asked takes for true; `None` = the usual limit.
    pub accept_dead_percent: Option<u8>,
    /// How long it may take, ms.
    pub lasts_ms: i64,
}

/// What became of a sweep that was asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum SweepBegun {
    /// Committed; the freeze is this instance's.
    Begun(Box<FreezeJob>),
    /// Another one is under way.
    Running(FanoutId),
}

/// Where a sweep got to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepEnd {
    /// The key after which it began.
    pub from: DeviceKey,
    /// Devices up to and with this key have an outcome of it, or were passed by before it.
    pub after: DeviceKey,
    /// Verdicts that were not carried out, once it is settled.
    pub withheld: Vec<Withheld>,
}

impl SweepEnd {
    /// Where one that resumes it begins: behind what it asked about, or, when its verdicts were withheld, where it
    /// began itself, so that those devices are asked about and judged.
    #[must_use]
    pub fn resumes_after(&self) -> DeviceKey {
        if self.withheld.is_empty() { self.after } else { self.from }
    }
}

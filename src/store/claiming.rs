//! Owns what is asked for when chunks are claimed.
//! Must never know: how chunks are found.

use crate::domain::batch::Class;
use crate::domain::ids::BootId;

/// How many chunks, and how urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The claiming instance.
    pub boot: BootId,
    /// Most chunks.
    pub want: u32,
    /// Which of the open ones.
    pub of: Open,
}

/// Which open chunks are claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// All.
    All,
    /// Those before this place in the order of (class, rank).
    AheadOf(Class, i64),
    /// Those of fan-outs whose deadline has passed: they are only to be ended.
    Overdue,
    /// Those of fan-outs of which the claiming instance owns nothing.
    Others,
}

//! Owns the switch for deliberate faults that `tests/mutants` plants one at a time, to see that a test notices.
//! Must never know: what any of them breaks. Without the feature `mutants` no fault is compiled in.

/// Whether the fault of this name is planted: `FANFARE_MUTANT` names it.
#[cfg(feature = "mutants")]
#[must_use]
pub fn on(name: &str) -> bool {
    std::env::var("FANFARE_MUTANT").is_ok_and(|planted| planted == name)
}

/// Never: this build has no faults to plant.
#[cfg(not(feature = "mutants"))]
#[inline]
#[must_use]
pub const fn on(_name: &str) -> bool {
    false
}

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

/// Panics where `FANFARE_PANIC` names this place and what is worked on contains `FANFARE_PANIC_OF`: for the test that the
/// panic of one recipient is that recipient's alone.
///
/// # Panics
/// When asked to.
#[cfg(feature = "mutants")]
pub fn panic_at(place: &str, on: &[u8]) {
    let asked = std::env::var("FANFARE_PANIC").is_ok_and(|asked| asked == place);
    let meant = |part: String| on.windows(part.len().max(1)).any(|window| window == part.as_bytes());
    assert!(!(asked && std::env::var("FANFARE_PANIC_OF").is_ok_and(meant)), "asked to panic at {place}");
}

/// Never: this build has no faults to plant.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn panic_at(_place: &str, _on: &[u8]) {}

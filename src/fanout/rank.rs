//! Owns the order of chunks inside a class: who is sent first when several fan-outs are under way.
//! Must never know: who claims them. Pure.
//!
//! A chunk's rank is the time it would be sent if its fan-out were alone, less a lead that is the longer the fewer are
//! served with its end. Without the lead a fan-out that is behind its times (the pace is halved, an outage is just over,
//! its chunks are spread over slow instances) would hold up every small one that is accepted after it for as long as
//! it is behind.

/// The lead of a fan-out of nobody, in ms. A fan-out is never put off by others for longer than this, beside the time
/// its share takes.
const LEAD_MS: f64 = 60_000.0;

/// Served with a chunk's end are so many: its lead is half of [`LEAD_MS`]. A goal for 100 goes before one for many
/// thousands that was accepted half a minute earlier; among large ones the lead is next to nothing.
const HALF_AT: f64 = 100.0;

/// The rank of a chunk of a fan-out that begins at `begin_ms`: `before` recipients come before it, `n` are in it.
#[expect(clippy::cast_possible_truncation, reason = "far below 2^53 ms")]
pub(super) fn rank(begin_ms: i64, before: usize, n: usize, rate_per_s: f64) -> i64 {
    let (before, end) = (before as f64, (before + n) as f64);
    begin_ms + (before * 1_000.0 / rate_per_s - LEAD_MS * HALF_AT / (HALF_AT + end)) as i64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::bitmap::CHUNK_SIZE;

    /// Ranks of the full chunks of a fan-out.
    fn ranks(begin_ms: i64, chunks: usize, rate: f64) -> Vec<i64> {
        (0..chunks).map(|i| rank(begin_ms, i * CHUNK_SIZE, CHUNK_SIZE, rate)).collect()
    }

    #[test]
    fn a_small_one_goes_before_a_large_one_however_far_that_is_behind() {
        // Half of what the ceiling allows was sent in 40 s: 180,000 of 1,000,000. What is next has a rank of 20 s.
        let large = ranks(0, 2_000, 9_000.0);
        assert!((19_000..21_000).contains(&large[360]), "{}", large[360]);
        assert!(rank(40_000, 0, 40, 9_000.0) < large[360]);
        assert!(rank(40_000, 0, 100, 9_000.0) < large[360]);
        // Its first chunk is no matter for large ones either.
        assert!(rank(1_000, 0, 40, 9_000.0) < large[0]);
    }

    #[test]
    fn large_ones_share() {
        // One that is accepted 10 s later takes its turns where the other is by then, not all turns until it has caught up.
        let (first, second) = (ranks(0, 2_000, 9_000.0), ranks(10_000, 2_000, 9_000.0));
        let before_it = first.iter().filter(|r| **r < second[20]).count();
        assert!((190..=220).contains(&before_it), "{before_it}");
    }

    proptest! {
        #[test]
        fn a_fan_out_is_sent_in_its_order_and_put_off_by_a_minute_at_most(
            chunks in 2_usize..200, n in 1..=CHUNK_SIZE, rate in 1.0_f64..100_000.0, later_ms in 60_000_i64..600_000,
        ) {
            let mut own = ranks(0, chunks, rate);
            own.push(rank(0, chunks * CHUNK_SIZE, n, rate));
            prop_assert!(own.windows(2).all(|pair| pair[0] < pair[1]), "{own:?}");
            let alone = |i: usize| (i * CHUNK_SIZE) as f64 * 1_000.0 / rate;
            for (i, own) in own.iter().enumerate() {
                let lead = alone(i) - *own as f64;
                prop_assert!((0.0..=LEAD_MS + 1.0).contains(&lead), "{lead}");
            }
            prop_assert!(rank(later_ms, 0, n, rate) >= own[0]);
        }
    }
}

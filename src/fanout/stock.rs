//! Owns the small stock of grants beside the dispatcher, and forfeits those that come too late to use.
//! Must never know: where grants come from.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::ceiling::{FORFEIT_AFTER, GrantRun};

/// Grants in hand, in the order of their times.
#[derive(Debug, Default)]
pub struct Stock {
    runs: VecDeque<GrantRun>,
    len: u64,
}

/// What the stock says to a wish for one grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// One grant, used now.
    Granted,
    /// The next may be used then.
    At(Instant),
    /// None in stock.
    Empty,
}

impl Stock {
    /// Puts a reservation in.
    pub fn add(&mut self, run: GrantRun) {
        if run.n > 0 {
            self.len += u64::from(run.n);
            self.runs.push_back(run);
        }
    }

    /// Grants in stock, usable or not yet.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether none is in stock.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Drops grants that are too late to use; returns how many.
    pub fn forfeit_late(&mut self, now: Instant) -> u64 {
        let mut lost = 0;
        while let Some(run) = self.runs.front_mut() {
            if run.n == 0 {
                self.runs.pop_front();
                continue;
            }
            if run.first + FORFEIT_AFTER >= now {
                break;
            }
            lost += u64::from(shift(run, late_in(run, now)));
        }
        self.len -= lost;
        lost
    }

    /// Drops everything, as a pause demands; returns how many grants that were.
    pub fn clear(&mut self) -> u64 {
        self.runs.clear();
        std::mem::take(&mut self.len)
    }

    /// When the next grant may be used, without taking it.
    #[must_use]
    pub fn peek(&self, now: Instant) -> Take {
        match self.runs.iter().find(|r| r.n > 0) {
            None => Take::Empty,
            Some(run) if run.first <= now => Take::Granted,
            Some(run) => Take::At(run.first),
        }
    }

    /// Takes one grant if it may be used now.
    pub fn take(&mut self, now: Instant) -> Take {
        let answer = self.peek(now);
        if answer == Take::Granted {
            while self.runs.front().is_some_and(|r| r.n == 0) {
                self.runs.pop_front();
            }
            if let Some(run) = self.runs.front_mut() {
                self.len -= u64::from(shift(run, 1));
            }
        }
        answer
    }
}

/// How many grants of a run are later than [`FORFEIT_AFTER`] at `now`.
fn late_in(run: &GrantRun, now: Instant) -> u32 {
    let behind = now.saturating_duration_since(run.first + FORFEIT_AFTER);
    if run.every.is_zero() {
        return run.n;
    }
    let whole = behind.as_nanos() / run.every.as_nanos();
    u32::try_from(whole + 1).unwrap_or(u32::MAX).min(run.n)
}

/// Takes `by` grants off the front of a run.
fn shift(run: &mut GrantRun, by: u32) -> u32 {
    let by = by.min(run.n);
    run.n -= by;
    run.first += Duration::saturating_mul(run.every, by);
    by
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u32, first: Instant, every_ms: u64) -> GrantRun {
        GrantRun { n, first, every: Duration::from_millis(every_ms) }
    }

    #[tokio::test(start_paused = true)]
    async fn grants_are_used_at_their_time_and_not_before() {
        let t = Instant::now();
        let mut stock = Stock::default();
        stock.add(run(3, t + Duration::from_millis(10), 5));
        assert_eq!(stock.take(t), Take::At(t + Duration::from_millis(10)));
        assert_eq!(stock.take(t + Duration::from_millis(10)), Take::Granted);
        assert_eq!(stock.take(t + Duration::from_millis(10)), Take::At(t + Duration::from_millis(15)));
        assert_eq!(stock.take(t + Duration::from_millis(21)), Take::Granted);
        assert_eq!(stock.take(t + Duration::from_millis(21)), Take::Granted);
        assert_eq!(stock.take(t + Duration::from_millis(21)), Take::Empty);
        assert!(stock.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn late_grants_are_forfeited_one_by_one() {
        let t = Instant::now();
        let mut stock = Stock::default();
        stock.add(run(10, t, 10));
        // At 75 ms those of 0, 10 and 20 ms are more than 50 ms late.
        assert_eq!(stock.forfeit_late(t + Duration::from_millis(75)), 3);
        assert_eq!(stock.len(), 7);
        assert_eq!(stock.forfeit_late(t + Duration::from_millis(75)), 0);
        assert_eq!(stock.forfeit_late(t + Duration::from_secs(9)), 7);
        assert!(stock.is_empty());
        stock.add(run(4, t + Duration::from_secs(10), 0));
        assert_eq!(stock.clear(), 4);
        assert_eq!(stock.peek(t + Duration::from_secs(11)), Take::Empty);
    }

    #[tokio::test(start_paused = true)]
    async fn every_grant_is_used_forfeited_or_in_stock() {
        let t = Instant::now();
        let mut stock = Stock::default();
        let (mut added, mut used, mut lost) = (0_u64, 0_u64, 0_u64);
        for step in 0..2_000_u64 {
            let now = t + Duration::from_millis(step * 7);
            if step % 3 == 0 {
                let n = u32::try_from(step % 11).unwrap();
                stock.add(run(n, now + Duration::from_millis(step % 40), 1 + step % 4));
                added += u64::from(n);
            }
            lost += stock.forfeit_late(now);
            if step % 2 == 0 && stock.take(now) == Take::Granted {
                used += 1;
            }
            assert_eq!(added, used + lost + stock.len());
        }
        assert!(used > 100 && lost > 100, "used {used}, lost {lost}");
    }
}

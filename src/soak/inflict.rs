//! Owns the doing of faults at their times: orders to the emulator, signals to Redis and to instances.
//! Must never know: what must hold all the same.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::SoakError;
use super::dice::Dice;
use super::faults::{Fault, Faults, Window};
use super::fleet::Fleet;
use super::observed::{Observed, Span};
use super::redis_server::Redis;
use crate::emulator::{Control, Emulator};

/// What there is to be hit.
pub struct Targets<'a> {
    /// The provider.
    pub emulator: &'a Emulator,
    /// Redis, where there is one.
    pub redis: Option<&'a mut Redis>,
    /// The instances.
    pub fleet: &'a mut Fleet,
    /// Ceiling, requests per second.
    pub rate: f64,
}

/// What of it is to be told afterwards.
#[derive(Debug, Default)]
pub struct Done {
    /// kill -9 of instances.
    pub kills: u64,
    /// SIGTERM of instances.
    pub terminated: u64,
    /// Times without Redis.
    pub away: Vec<Span>,
    /// What did not go as it should.
    pub mishaps: Vec<String>,
}

impl Done {
    /// Puts it with what was seen.
    pub fn into_observed(self, o: &mut Observed) {
        (o.kills, o.terminated, o.away, o.mishaps) = (self.kills, self.terminated, self.away, self.mishaps);
    }
}

/// Does all faults, from `begun` on, each kind of victim apart from the others; all are mended at the end.
pub async fn all(targets: Targets<'_>, faults: &Faults, seed: u64, begun: Instant) -> Done {
    let of = |wanted: fn(&Window) -> bool| faults.windows.iter().filter(|w| wanted(w)).copied().collect::<Vec<_>>();
    let provider = of(|w| w.fault.control(1.0).is_some());
    let redis_windows = of(|w| w.fault.is_redis());
    let restarts = of(|w| matches!(w.fault, Fault::Kill | Fault::Terminate));
    let Targets { emulator, redis, fleet, rate } = targets;
    let (mut by_provider, mut by_redis, mut by_restart) = (Vec::new(), Done::default(), Done::default());
    tokio::join!(
        provider_faults(emulator, &provider, rate, begun, &mut by_provider),
        redis_faults(redis, &redis_windows, begun, &mut by_redis),
        instance_faults(fleet, &restarts, Dice::new(seed, "victims"), begun, &mut by_restart),
    );
    let mishaps = [by_provider, by_redis.mishaps, by_restart.mishaps].concat();
    Done { away: by_redis.away, mishaps, ..by_restart }
}

async fn until(begun: Instant, ms: u64) {
    sleep_until(begun + Duration::from_millis(ms)).await;
}

async fn provider_faults(
    emulator: &Emulator,
    windows: &[Window],
    rate: f64,
    begun: Instant,
    mishaps: &mut Vec<String>,
) {
    for window in windows {
        until(begun, window.from_ms).await;
        let ordered = window.fault.control(rate).map_or(Ok(()), |control| emulator.control(&control));
        until(begun, window.to_ms).await;
        let calm = emulator.control(&Control { calm: true, ..Control::default() });
        mishaps.extend(ordered.and(calm).err().map(|fault| fault.to_string()));
    }
}

async fn redis_faults(redis: Option<&mut Redis>, windows: &[Window], begun: Instant, done: &mut Done) {
    let Some(redis) = redis else { return };
    for window in windows {
        until(begun, window.from_ms).await;
        let hit = if window.fault == Fault::RedisFreeze { redis.freeze() } else { redis.kill().await };
        until(begun, window.to_ms).await;
        let mended = redis.mend().await;
        let to_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        done.away.push(Span { from_ms: window.from_ms, to_ms });
        done.mishaps.extend(hit.and(mended).err().map(|fault| fault.to_string()));
    }
}

async fn instance_faults(fleet: &mut Fleet, windows: &[Window], mut dice: Dice, begun: Instant, done: &mut Done) {
    for window in windows {
        until(begun, window.from_ms).await;
        let seat = usize::try_from(dice.roll(0, fleet.size() as u64)).unwrap_or(0);
        if let Err(fault) = replace(fleet, seat, window.fault, done).await {
            done.mishaps.push(fault.to_string());
        }
    }
}

/// Ends one and starts another in its place, also when it did not end as it should.
async fn replace(fleet: &mut Fleet, seat: usize, fault: Fault, done: &mut Done) -> Result<(), SoakError> {
    let ended = if fault == Fault::Kill {
        done.kills += 1;
        fleet.kill(seat).await
    } else {
        done.terminated += 1;
        fleet.terminate(seat).await
    };
    fleet.start(seat).await?;
    ended
}

//! Four real processes, one Postgres, one Redis, one timeline of faults, counted where requests arrive: at the emulator.
//!
//! Each phase says how much of the ceiling may be used in any second that touches it, and how much has to be. A phase
//! that keeps its law is over. One that misses it by more than the lateness of the machine explains has failed. One that
//! misses it by less, or on a machine that was late by more than 50 ms, or whose lateness kept an instance and Redis from
//! talking for 100 ms so that it left Redis unasked, says nothing: it is repeated, up to four times in all, and then
//! fails for that reason.
//!
//! Something is asked even of a phase that is repeated: no second may hold more than the lateness explains (requests
//! that leave on time arrive together where nobody looked for a while) and those who left, whose law is that of p of N
//! cut off, rate x (1 + p/N).
//!
//! `FANFARE_LONG=1` measures every phase three times as long.

use std::time::{Duration, Instant};

use fanfare::emulator::Control;

use super::lateness::{Lateness, QUIET};
use crate::harness::process::Process;
use crate::harness::proxy::Proxy;
use crate::harness::redis::RedisServer;
use crate::harness::service::{Database, World, goal};

/// The ceiling of the fleet, per second.
const RATE: f64 = 300.0;
/// Instances.
const N: usize = 4;
/// Followers, and goals for them: more than the whole timeline can send.
const FOLLOWERS: usize = 3_000;
const GOALS: u32 = 30;
/// How often a phase is tried until the machine lets it.
const TRIES: usize = 4;
/// Timers later than this make a phase say nothing.
const DISTURBED: Duration = Duration::from_millis(50);
/// Longest wait for something that must happen.
const SOON: Duration = Duration::from_secs(40);

/// What one phase allows and asks for, as shares of the ceiling.
struct Law {
    name: &'static str,
    most: f64,
    least: f64,
    /// How many of the instances, from the first, are made to leave Redis in it, and how often at most.
    leave: usize,
    times: usize,
    /// None has been with Redis when it begins for the first time.
    begins_split: bool,
}

/// The worst second of some, as a share of the ceiling, and what it may hold: by the law, and by what disturbed it.
struct Worst {
    held: f64,
    most: f64,
    explained: f64,
}

/// What one try of a phase came to.
struct Tried {
    seconds: f64,
    /// Share of the ceiling.
    used: f64,
    /// Of the seconds within it, and of those that began before it, under the law of the phase before.
    inside: Worst,
    across: Worst,
    /// Instances that were away from Redis in it without being made to.
    unasked: usize,
    /// The worst in all of it.
    late: Duration,
}

impl Tried {
    fn faults(&self, law: &Law) -> Vec<String> {
        let mut faults = Vec::new();
        for worst in [&self.inside, &self.across] {
            if worst.held > worst.most {
                faults.push(format!("{:.2} of the ceiling in a second, allowed are {:.2}", worst.held, worst.most));
            }
        }
        if self.used < law.least {
            faults.push(format!("only {:.2} of the ceiling used, {:.2} has to be", self.used, law.least));
        }
        faults
    }

    /// What no disturbance excuses.
    fn inexcusable(&self, law: &Law) -> Option<&'static str> {
        if [&self.inside, &self.across].iter().any(|worst| worst.held > worst.explained) {
            Some("more within a second than the machine's lateness explains")
        } else if self.used == 0.0 && law.least > 0.0 {
            Some("nothing sent")
        } else if self.unasked > 0 && self.late <= QUIET {
            Some("an instance left Redis unasked on a quiet machine")
        } else {
            None
        }
    }
}

/// What the phase before allowed.
#[derive(Clone, Copy, Default)]
struct Before {
    most: f64,
    explained: f64,
    disturbed: bool,
}

struct Fleet {
    world: World,
    redis: RedisServer,
    proxies: Vec<Proxy>,
    services: Vec<Process>,
    before: Before,
    faults: Vec<String>,
    late: Lateness,
}

impl Fleet {
    /// Four instances that have never seen Redis.
    async fn boot() -> Self {
        let mut world = World::new(Database::Postgres, false).await;
        world.emulate(Control { latency_ms: Some(10), ..Control::default() });
        world.set("CEILING__RATE_PER_S", RATE);
        world.set("DATABASE__MAX_CONNECTIONS", 4);
        let (redis, late) = (RedisServer::absent(), Lateness::watch());
        let (mut proxies, mut services) = (Vec::new(), Vec::new());
        for _ in 0..N {
            let proxy = Proxy::start(redis.socket().to_str().unwrap()).await;
            world.set("REDIS__URL", format!("redis://{}", proxy.addr));
            services.push(world.spawn().await);
            proxies.push(proxy);
        }
        let tokens: Vec<String> = (0..FOLLOWERS).map(|i| format!("ok-timeline-{i}")).collect();
        services[0].follow("timeline", &tokens).await;
        for minute in 1..=GOALS {
            let mut event = goal(&format!("timeline-{minute}"), "timeline", 600);
            event.fields.insert("minute".into(), minute.into());
            services[minute as usize % N].client.post_event(&event).await.unwrap();
        }
        Self { world, redis, proxies, services, before: Before::default(), faults: Vec::new(), late }
    }

    fn now_us(&self) -> u64 {
        self.world.emulator.stats().uptime_ms * 1_000
    }

    /// Of each instance, how often it left Redis and whether it is away now.
    fn away(&self) -> Vec<(usize, bool)> {
        let count =
            |s: &Process, to: &str| s.said("ceiling mode changed").iter().filter(|line| line["to"] == to).count();
        self.services.iter().map(|s| (count(s, "split"), count(s, "split") + 1 > count(s, "shared"))).collect()
    }

    /// What `acts` does is one phase, told which try it is.
    async fn phase(&mut self, law: Law, acts: impl AsyncFn(&mut Self, usize)) {
        for n in 0..TRIES {
            if n > 0 {
                self.quieter().await;
            }
            let tried = self.tried(&law, n, &acts).await;
            let faults = tried.faults(&law);
            let disturbed = tried.unasked > 0 || tried.late > DISTURBED;
            let across = tried.across.held > tried.across.most && self.before.disturbed;
            // Too much, but no more than the lateness explains: what it does not explain is told below.
            let late = tried.used >= law.least;
            let again = !faults.is_empty() && (disturbed || across || late);
            self.before = Before { most: law.most, explained: tried.inside.explained, disturbed };
            println!(
                "{:>9}: {:4.1} s, {:.2} of the ceiling used, {:.2} in the worst second of {:.2} allowed, {:.2} of {:.2} where it began (late {:?}, {} left unasked){}",
                law.name,
                tried.seconds,
                tried.used,
                tried.inside.held,
                tried.inside.most,
                tried.across.held,
                tried.across.most,
                tried.late,
                tried.unasked,
                if again { " DISTURBED, to be repeated" } else { "" },
            );
            self.faults.extend(tried.inexcusable(&law).map(|fault| format!("{}: {fault}", law.name)));
            if !again {
                self.faults.extend(faults.iter().map(|fault| format!("{}: {fault}", law.name)));
                return;
            }
        }
        self.faults.push(format!("{}: the machine was never undisturbed in {TRIES} tries", law.name));
    }

    async fn tried(&mut self, law: &Law, n: usize, acts: &impl AsyncFn(&mut Self, usize)) -> Tried {
        let (from_us, before) = (self.now_us(), self.away());
        acts(self, n).await;
        let span = from_us..self.now_us();
        // To begin again, those that began without Redis lose it.
        let lost = usize::from(law.begins_split && n > 0);
        let away = before.into_iter().zip(self.away()).enumerate();
        let unasked = away.filter(|(i, ((left, away), (left_after, _)))| {
            let meant = lost + if *i < law.leave { law.times } else { 0 };
            (*away && !law.begins_split) || left_after - left > meant
        });
        let unasked = unasked.count();
        let at: Vec<u64> = self.world.emulator.log().iter().map(|entry| entry.t_ns / 1_000).collect();
        let seconds = (span.end - span.start) as f64 / 1e6;
        let origin = Instant::now() - Duration::from_micros(self.now_us());
        let time = |us: u64| origin + Duration::from_micros(us);
        let worst = |begins: u64, ends: u64, most: f64, disturbed: f64| {
            let (held, from_us) = worst_second(at.iter().copied().filter(|t| (begins..ends).contains(t)));
            // The two clocks are not the same to the millisecond.
            let edge = Duration::from_millis(200);
            let late = self.late.worst(time(from_us) - edge, time(from_us + 1_000_000) + edge);
            // Once for whoever sends and once for who counts.
            let explained = disturbed + 2.0 * late.as_secs_f64();
            Worst { held: held as f64 / RATE, most, explained: explained.max(most) }
        };
        let second = 1_000_000;
        let explained = law.most + unasked as f64 / N as f64;
        Tried {
            seconds,
            used: at.iter().filter(|t| span.contains(t)).count() as f64 / seconds / RATE,
            inside: worst(span.start, span.end, law.most, explained),
            across: worst(
                span.start.saturating_sub(second),
                span.end.min(span.start + second),
                law.most.max(self.before.most),
                explained.max(self.before.explained),
            ),
            unasked,
            late: self.late.worst(time(span.start), time(span.end)),
        }
    }

    /// Waits for a second in which the machine was on time, but no longer than ten.
    async fn quieter(&self) {
        for _ in 0..10 {
            let begun = Instant::now();
            tokio::time::sleep(Duration::from_secs(1)).await;
            if self.late.worst(begun, Instant::now()) <= DISTURBED / 2 {
                return;
            }
        }
    }

    /// Waits until these instances say this mode.
    async fn all(&self, mode: &str) {
        for service in &self.services {
            let look = async {
                while service.client.ceiling().await.unwrap().mode != mode {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::time::timeout(SOON, look).await.unwrap_or_else(|_| panic!("an instance is not {mode}"));
        }
    }
}

/// Most of these times (microseconds) within one second, and when that second began.
fn worst_second(at: impl Iterator<Item = u64>) -> (usize, u64) {
    let at: Vec<u64> = at.collect();
    let (mut from, mut worst) = (0, (0, at.first().copied().unwrap_or(0)));
    for (i, t) in at.iter().enumerate() {
        while t - at[from] >= 1_000_000 {
            from += 1;
        }
        worst = worst.max((i + 1 - from, at[from]));
    }
    worst
}

const fn law(name: &'static str, most: f64, least: f64, leave: usize) -> Law {
    Law { name, most, least, leave, times: 1, begins_split: false }
}

/// The same from a time on when no instance has seen Redis.
const fn law_before(name: &'static str, most: f64, least: f64) -> Law {
    Law { begins_split: true, ..law(name, most, least, 0) }
}

async fn pass(seconds: f64) {
    let long = if std::env::var("FANFARE_LONG").is_ok_and(|long| long == "1") { 3.0 } else { 1.0 };
    tokio::time::sleep(Duration::from_secs_f64(seconds * long)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_processes_keep_to_one_rate_through_every_fault_of_redis() {
    let mut fleet = Fleet::boot().await;
    // They know of each other after a heartbeat.
    fleet
        .phase(law_before("booting", 1.10, 0.0), async |fleet, _| {
            fleet.all("split").await;
            pass(3.2).await;
        })
        .await;
    fleet.phase(law_before("absent", 1.10, 0.85), async |_, _| pass(2.5).await).await;
    // Until the own share of each has ceased to apply as well.
    fleet
        .phase(law_before("there", 1.10, 0.75), async |fleet, n| {
            if n > 0 {
                fleet.redis.kill().await;
                fleet.all("split").await;
            }
            fleet.redis.run().await;
            fleet.all("shared").await;
            tokio::time::sleep(Duration::from_secs(10)).await;
        })
        .await;
    fleet.phase(law("steady", 1.10, 0.95, 0), async |_, _| pass(4.0).await).await;
    fleet
        .phase(law("forgets", 1.10, 0.65, 0), async |fleet, _| {
            for _ in 0..4 {
                fleet.redis.command::<()>(&["FLUSHALL"]).await;
                fleet.redis.command::<()>(&["SCRIPT", "FLUSH"]).await;
                pass(0.6).await;
            }
        })
        .await;
    let cut = 2;
    fleet
        .phase(law("two cut", 1.0 + cut as f64 / N as f64 + 0.10, 0.85, cut), async |fleet, _| {
            fleet.proxies[..cut].iter().for_each(Proxy::cut);
            pass(3.0).await;
            fleet.proxies[..cut].iter().for_each(Proxy::mend);
            fleet.all("shared").await;
        })
        .await;
    fleet
        .phase(law("silent", 1.10, 0.75, N), async |fleet, _| {
            fleet.redis.freeze().await;
            pass(3.0).await;
            fleet.redis.thaw().await;
            fleet.all("shared").await;
        })
        .await;
    fleet
        .phase(law("killed", 1.10, 0.75, N), async |fleet, _| {
            fleet.redis.kill().await;
            pass(1.0).await;
            fleet.redis.run().await;
            fleet.all("shared").await;
        })
        .await;
    // However often each leaves, which is a matter of when it looks.
    fleet
        .phase(Law { times: usize::MAX - 1, ..law("flapping", 1.10, 0.7, N) }, async |fleet, _| {
            for _ in 0..6 {
                fleet.redis.freeze().await;
                pass(0.4).await;
                fleet.redis.thaw().await;
                pass(0.4).await;
            }
            fleet.all("shared").await;
        })
        .await;
    for service in &fleet.services {
        let changes = service.said("ceiling mode changed");
        let turns = changes.windows(2).filter(|pair| pair[0]["to"] == pair[1]["to"]).count();
        assert_eq!(turns, 0, "one line per transition: {changes:#?}");
        assert!(changes.iter().all(|line| line["reason"].as_str().is_some_and(|why| why.starts_with("redis"))));
    }
    assert!(fleet.faults.is_empty(), "{:#?}", fleet.faults);
}

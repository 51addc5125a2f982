//! Four real processes, one Postgres, one Redis, one timeline of faults, counted where requests arrive: at the emulator.
//!
//! Each phase says how much of the ceiling may be used in any second that touches it, and how much has to be. What this
//! machine itself was late is allowed for: requests that leave on time arrive together where nobody looked for a while.
//! So is an instance that leaves Redis although the phase does not mean it to, because the machine kept both from
//! talking for 100 ms: it is then one of p cut off, and the law for p of N is rate x (1 + p/N). How much has to be used
//! is asked of a phase only when neither happened; that no more than allowed is used, always.
//!
//! `FANFARE_LONG=1` measures every phase three times as long.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fanfare::emulator::Control;

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
const GOALS: u32 = 10;
/// Longest wait for something that must happen.
const SOON: Duration = Duration::from_secs(40);

/// What one phase allows and asks for, as shares of the ceiling.
struct Law {
    name: &'static str,
    most: f64,
    least: f64,
    /// How many of the instances, from the first, are made to leave Redis in it.
    leave: usize,
    /// None has been with Redis when it begins.
    begins_split: bool,
}

struct Phase {
    law: Law,
    from_us: u64,
    to_us: u64,
    /// Instances that were away from Redis in it without being made to.
    unasked: usize,
}

impl Phase {
    fn most(&self) -> f64 {
        self.law.most + self.unasked as f64 / N as f64
    }
}

struct Fleet {
    world: World,
    redis: RedisServer,
    proxies: Vec<Proxy>,
    services: Vec<Process>,
    phases: Vec<Phase>,
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
        Self { world, redis, proxies, services, phases: Vec::new(), late }
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

    /// What `acts` does is one phase, judged at the end.
    async fn phase<T>(&mut self, law: Law, acts: impl AsyncFnOnce(&mut Self) -> T) -> T {
        let (from_us, before) = (self.now_us(), self.away());
        let result = acts(self).await;
        let away = before.into_iter().zip(self.away()).enumerate();
        let unasked = away.filter(|(i, ((left, away), (left_after, _)))| {
            (*away && !law.begins_split) || left_after - left > usize::from(*i < law.leave)
        });
        let unasked = unasked.count();
        self.phases.push(Phase { law, from_us, to_us: self.now_us(), unasked });
        result
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

    /// Every window against the laws of the phases it touches, and every phase against the least it has to use.
    fn judge(&self) {
        let at: Vec<u64> = self.world.emulator.log().iter().map(|entry| entry.t_ns / 1_000).collect();
        let mut faults = Vec::new();
        for (i, phase) in self.phases.iter().enumerate() {
            let (law, span) = (&phase.law, phase.from_us..phase.to_us);
            let seconds = (phase.to_us - phase.from_us) as f64 / 1e6;
            let used = at.iter().filter(|t| span.contains(t)).count() as f64 / seconds / RATE;
            let (worst, from_us) = worst_second(&at, &span);
            // The second may have begun in the phase before, under its law.
            let before = self.phases[..i].last().filter(|_| from_us < phase.from_us).map_or(0.0, |phase| phase.most());
            let late = self.late.worst(self.started(), from_us);
            // Once for whoever sends and once for who counts.
            let most = RATE * (phase.most().max(before) + 2.0 * late.as_secs_f64());
            println!(
                "{:>9}: {seconds:4.1} s, {used:.2} of the ceiling used, {:.2} in the worst second of {:.2} allowed (late {late:?}, {} left unasked)",
                law.name,
                worst as f64 / RATE,
                most / RATE,
                phase.unasked,
            );
            if worst as f64 > most {
                faults.push(format!("{}: {worst} within a second, allowed are {most:.0}", law.name));
            }
            let disturbed = phase.unasked > 0 || late > Duration::from_millis(50);
            // How much a machine that stands still could have sent, nobody can say.
            if used < law.least && !disturbed {
                faults.push(format!("{}: only {used:.2} of the ceiling used, {:.2} has to be", law.name, law.least));
            }
            if used == 0.0 && law.least > 0.0 {
                faults.push(format!("{}: nothing sent", law.name));
            }
        }
        assert!(faults.is_empty(), "{faults:#?}");
    }

    /// When the emulator's time began.
    fn started(&self) -> Instant {
        Instant::now() - Duration::from_micros(self.now_us())
    }
}

/// Most of these times (microseconds) within one second that ends in `span`, and when that second began.
fn worst_second(at: &[u64], span: &Range<u64>) -> (usize, u64) {
    let (mut from, mut worst) = (0, (0, span.start));
    for (i, t) in at.iter().enumerate() {
        while t - at[from] >= 1_000_000 {
            from += 1;
        }
        if span.contains(t) {
            worst = worst.max((i + 1 - from, at[from]));
        }
    }
    worst
}

/// How late this process's own timers were, and when.
struct Lateness {
    seen: Arc<Mutex<Vec<(Instant, Duration)>>>,
    stop: Arc<AtomicBool>,
}

impl Lateness {
    fn watch() -> Self {
        let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (noted, ended) = (Arc::clone(&seen), Arc::clone(&stop));
        std::thread::spawn(move || {
            let nap = Duration::from_millis(5);
            while !ended.load(SeqCst) {
                let begun = Instant::now();
                std::thread::sleep(nap);
                noted.lock().unwrap().push((Instant::now(), begun.elapsed() - nap));
            }
        });
        Self { seen, stop }
    }

    /// The worst in the second that began at `from_us` after `origin`.
    fn worst(&self, origin: Instant, from_us: u64) -> Duration {
        let from = origin + Duration::from_micros(from_us);
        let near = from - Duration::from_millis(200)..from + Duration::from_millis(1_200);
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(at, _)| near.contains(at)).map(|(_, late)| *late).max().unwrap_or_default()
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
    }
}

const fn law(name: &'static str, most: f64, least: f64, leave: usize) -> Law {
    Law { name, most, least, leave, begins_split: false }
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
        .phase(law_before("booting", 1.10, 0.0), async |fleet| {
            fleet.all("split").await;
            pass(3.2).await;
        })
        .await;
    fleet.phase(law_before("absent", 1.10, 0.85), async |_| pass(2.5).await).await;
    // Until the own share of each has ceased to apply as well.
    fleet
        .phase(law_before("there", 1.10, 0.75), async |fleet| {
            fleet.redis.run().await;
            fleet.all("shared").await;
            tokio::time::sleep(Duration::from_secs(10)).await;
        })
        .await;
    fleet.phase(law("steady", 1.10, 0.95, 0), async |_| pass(4.0).await).await;
    fleet
        .phase(law("forgets", 1.10, 0.65, 0), async |fleet| {
            for _ in 0..4 {
                fleet.redis.command::<()>(&["FLUSHALL"]).await;
                fleet.redis.command::<()>(&["SCRIPT", "FLUSH"]).await;
                pass(0.6).await;
            }
        })
        .await;
    let cut = 2;
    fleet
        .phase(law("two cut", 1.0 + cut as f64 / N as f64 + 0.10, 0.85, cut), async |fleet| {
            fleet.proxies[..cut].iter().for_each(Proxy::cut);
            pass(3.0).await;
            fleet.proxies[..cut].iter().for_each(Proxy::mend);
            fleet.all("shared").await;
        })
        .await;
    fleet
        .phase(law("silent", 1.10, 0.75, N), async |fleet| {
            fleet.redis.freeze().await;
            pass(3.0).await;
            fleet.redis.thaw().await;
            fleet.all("shared").await;
        })
        .await;
    fleet
        .phase(law("killed", 1.10, 0.75, N), async |fleet| {
            fleet.redis.kill().await;
            pass(1.0).await;
            fleet.redis.run().await;
            fleet.all("shared").await;
        })
        .await;
    fleet
        .phase(law("flapping", 1.10, 0.7, N), async |fleet| {
            for _ in 0..6 {
                fleet.redis.freeze().await;
                pass(0.4).await;
                fleet.redis.thaw().await;
                pass(0.4).await;
            }
        })
        .await;
    for service in &fleet.services {
        let changes = service.said("ceiling mode changed");
        let turns = changes.windows(2).filter(|pair| pair[0]["to"] == pair[1]["to"]).count();
        assert_eq!(turns, 0, "one line per transition: {changes:#?}");
        assert!(changes.iter().all(|line| line["reason"].as_str().is_some_and(|why| why.starts_with("redis"))));
    }
    fleet.judge();
}

//! Owns some instances on one database and the faults done to them.
//! Must never know: what must hold afterwards.

use std::time::{Duration, Instant};

use fanfare::emulator::Control;
use fanfare::wire::EventRequest;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::harness::process::Process;
use crate::harness::service::{Database, World, goal};

/// Lease of an instance, and a second for the heartbeat of whoever takes over to be nearer.
pub const LEASE: Duration = Duration::from_secs(16);
/// Long enough that nothing expires.
const USEFUL_S: u32 = 3600;
/// Longest wait for a post to be taken: faults of the database last less.
const PATIENCE: Duration = Duration::from_secs(90);

/// A story's numbers.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub name: &'static str,
    pub seed: u64,
    pub instances: usize,
    /// Of the large fan-out; five small ones of a fiftieth each come in between.
    pub recipients: usize,
    /// Ceiling of the fleet.
    pub rate: usize,
    pub redis: bool,
}

/// Numbers that are the same in every run.
pub struct Dice(u64);

impl Dice {
    /// From `from` up to `to`, without it.
    pub fn roll(&mut self, from: u64, to: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        from + (z ^ (z >> 31)) % (to - from)
    }
}

/// One instance.
pub struct Instance {
    pub process: Process,
    pub boot: Uuid,
}

/// What was done to the fleet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Done {
    pub kills: u64,
    /// Stops longer than a lease.
    pub stalls: u64,
    /// Everything else: restarts, cut connections.
    pub others: u64,
}

/// One fan-out that was answered 202.
#[derive(Debug, Clone)]
pub struct Posted {
    pub id: String,
    pub recipients: usize,
}

/// Instances on one database.
pub struct Fleet {
    pub plan: Plan,
    pub world: World,
    pub instances: Vec<Instance>,
    /// Processes that were killed: their lines count.
    pub past: Vec<Process>,
    pub dice: Dice,
    pub done: Done,
    pub posted: Vec<Posted>,
    /// What was posted for the database's sake, to nobody.
    pub unfollowed: Vec<Posted>,
    pub begun: Instant,
    /// The database's URL, whatever proxy the instances use.
    direct: String,
}

impl Fleet {
    /// Everything but instances. With `server`, on a PostgreSQL of the test's own.
    pub async fn new(plan: Plan, server: Option<String>) -> Self {
        let mut world = match server {
            Some(server) => World::on(server, plan.redis).await,
            None => World::new(Database::Postgres, plan.redis).await,
        };
        world.emulate(Control { latency_ms: Some(40), ..Control::default() });
        world.set("CEILING__RATE_PER_S", plan.rate);
        world.set("DATABASE__MAX_CONNECTIONS", 4);
        let direct = world.settings["FANFARE__DATABASE__URL"].clone();
        let (dice, begun) = (Dice(plan.seed), Instant::now());
        let (instances, past, posted, unfollowed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let fleet =
            Self { plan, world, instances, past, dice, done: Done::default(), posted, unfollowed, begun, direct };
        fleet.follow("big", plan.recipients).await;
        for n in 0..5 {
            fleet.follow(&format!("small-{n}"), fleet.small()).await;
        }
        fleet
    }

    /// The same with its instances running and the large fan-out posted.
    pub async fn sending(plan: Plan, server: Option<String>) -> Self {
        let mut fleet = Self::new(plan, server).await;
        for _ in 0..plan.instances {
            fleet.spawn().await;
        }
        fleet.post("big", plan.recipients).await;
        fleet
    }

    fn small(&self) -> usize {
        (self.plan.recipients / 50).max(1)
    }

    /// A connection beside the instances.
    pub async fn database(&self) -> PgConnection {
        PgConnection::connect(&self.direct).await.expect("the database takes connections")
    }

    /// Registers followers; by SQL, since registering is not what is tested.
    async fn follow(&self, run: &str, n: usize) {
        let mut database = self.database().await;
        let devices = "INSERT INTO device (id, user_id, token, platform, locale, registered_ms)
            SELECT $1 || '-' || i, 'user-' || i, 'ok-' || $1 || '-' || i, 1 + i % 3, 'en', 0
            FROM generate_series(1, $2::int) i";
        let follows = "INSERT INTO follow (subject, device_key, wanted, kinds)
            SELECT 'match:' || $1, device_key, 9223372036854775807, 9223372036854775807
            FROM device WHERE id LIKE $1 || '-%'";
        sqlx::query(devices).bind(run).bind(i32::try_from(n).unwrap()).execute(&mut database).await.unwrap();
        sqlx::query(follows).bind(run).execute(&mut database).await.unwrap();
    }

    /// Starts one more instance.
    pub async fn spawn(&mut self) {
        let process = self.world.spawn().await;
        let known: Vec<Uuid> = self.instances.iter().map(|instance| instance.boot).collect();
        let newest = "SELECT boot_id FROM instance WHERE NOT boot_id = ANY ($1) ORDER BY started_ms DESC LIMIT 1";
        let boot = sqlx::query_scalar(newest).bind(known).fetch_one(&mut self.database().await).await.unwrap();
        self.instances.push(Instance { process, boot });
    }

    /// Posts a goal to whoever takes it. Not taken is not an error: it is posted again, under the same id.
    pub async fn post(&mut self, match_id: &str, recipients: usize) {
        let event = goal(match_id, match_id, USEFUL_S);
        let begun = Instant::now();
        loop {
            match self.try_post(&event).await {
                Ok(id) => {
                    self.posted.push(Posted { id, recipients });
                    return;
                }
                Err(answer) => assert!(begun.elapsed() < PATIENCE, "not taken: {answer}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Posts it once, to any instance; the fan-out, or why it was not taken.
    async fn try_post(&mut self, event: &EventRequest) -> Result<String, String> {
        let i = self.any();
        let asked = &self.instances[i].process;
        match tokio::time::timeout(Duration::from_secs(10), asked.client.post_event(event)).await {
            Ok(Ok((accepted, _))) => Ok(accepted.fanout_id),
            Ok(Err(refused)) => Err(refused.to_string()),
            Err(silent) => Err(silent.to_string()),
        }
    }

    /// Posts goals nobody follows until one is not taken, for each needs room in the database; then waits until that has
    /// come back, `room` having been made.
    pub async fn until_refused(&mut self, room: impl AsyncFnOnce()) -> String {
        let begun = Instant::now();
        let mut n = 0;
        let (event, why) = loop {
            assert!(begun.elapsed() < PATIENCE, "{n} events were taken");
            let id = format!("nobody-{n}");
            let event = goal(&id, &id, USEFUL_S);
            match self.try_post(&event).await {
                Ok(id) => self.unfollowed.push(Posted { id, recipients: 0 }),
                Err(why) => break (event, why),
            }
            n += 1;
        };
        room().await;
        // Whether it was kept all the same is not known: the same id tells.
        loop {
            match self.try_post(&event).await {
                Ok(id) => break self.unfollowed.push(Posted { id, recipients: 0 }),
                Err(answer) => assert!(begun.elapsed() < 2 * PATIENCE, "not taken: {answer}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        why
    }

    /// Posts the next of the small goals, if one is left.
    pub async fn post_small(&mut self) {
        let n = self.posted.len() - 1;
        if n < 5 {
            self.post(&format!("small-{n}"), self.small()).await;
        }
    }

    /// Devices of the large fan-out that have been reached.
    pub fn reached(&self) -> usize {
        usize::try_from(self.world.emulator.stats().distinct_accepted).unwrap()
    }

    /// Whether so much of the large fan-out has been sent, in per cent.
    pub fn sent(&self, per_cent: usize) -> bool {
        self.reached() * 100 >= self.plan.recipients * per_cent
    }

    /// Waits until so many have been reached.
    pub async fn reach(&self, n: usize) {
        let begun = Instant::now();
        while self.reached() < n {
            assert!(begun.elapsed() < PATIENCE, "{}: {} of {n} reached", self.plan.name, self.reached());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Some time between the two, in ms.
    pub async fn pause(&mut self, from_ms: u64, to_ms: u64) {
        let ms = self.dice.roll(from_ms, to_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// One of the instances.
    pub fn any(&mut self) -> usize {
        let n = self.instances.len() as u64;
        usize::try_from(self.dice.roll(0, n)).unwrap()
    }

    /// kill -9. Its lease is left to run out.
    pub async fn kill(&mut self, i: usize) -> Uuid {
        let Instance { mut process, boot } = self.instances.remove(i);
        process.signal("-KILL").await;
        process.ended().await;
        self.past.push(process);
        self.done.kills += 1;
        boot
    }

    /// kill -9 of an instance whose lease then ends at once, as if 15 s had passed. Nothing that lives is deceived by
    /// that: the instance is dead.
    pub async fn kill_and_bury(&mut self, i: usize) {
        let boot = self.kill(i).await;
        let ends = "UPDATE instance SET lease_until_ms = 0 WHERE boot_id = $1";
        sqlx::query(ends).bind(boot).execute(&mut self.database().await).await.unwrap();
    }

    /// Ends every connection of the instances to the database, or one of them.
    pub async fn cut(&self, all: bool) {
        let cut = "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random()
            LIMIT CASE WHEN $1 THEN NULL ELSE 1 END) x";
        sqlx::query(cut).bind(all).execute(&mut self.database().await).await.unwrap();
    }
}

//! Owns everything a day is played on, from start to end: directory, emulator, Redis, instances, and what is asked of them
//! when it is over.
//! Must never know: the day, or what must hold after it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use secrecy::SecretString;
use serde_json::Value;
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::collect::Collected;
use super::day::Day;
use super::faults::{Faults, Victims, stalls};
use super::fleet::{Fleet, Seat, Seats};
use super::home::Home;
use super::inflict::Targets;
use super::observed::{Observed, Usage};
use super::oracle::{Keys, Seen};
use super::redis_server::Redis;
use super::report::Setup;
use super::{Options, SoakError, audience, sample};
use crate::api::{Scope, keys};
use crate::client::Client;
use crate::config::{Environment, Fcm, load};
use crate::emulator::{Control, Emulator, Settings};
use crate::wire::{Fanout, Format};

/// Latency of the emulator, ms: what FCM takes near its data centres is of this order.
const LATENCY_MS: u64 = 20;
const JITTER_MS: u64 = 30;
/// Longest wait for all fan-outs to be settled: a lease that has to run out, the longest attempts, and some.
const PATIENCE: Duration = Duration::from_secs(150);
/// Longest wait for one answer among many.
const LOOK: Duration = Duration::from_secs(3);

/// All of it. What it started ends when it is dropped.
pub struct World {
    /// Part of every name of this soak.
    pub run: String,
    emulator: Emulator,
    redis: Option<Redis>,
    own_redis: bool,
    fleet: Fleet,
    postgres: bool,
    rate: f64,
    fcm: Fcm,
    before: BTreeMap<usize, Usage>,
    collected: JoinHandle<Collected>,
    /// Last: what is in it is in use until then.
    _home: Home,
}

impl World {
    /// Everything, running.
    ///
    /// # Errors
    /// [`SoakError`].
    pub async fn start(options: &Options, run: &str) -> Result<Self, SoakError> {
        let home = Home::open(options.out.as_deref())?;
        let postgres = options.database_url.as_deref().is_some_and(|url| url.starts_with("postgres"));
        if options.instances > 1 && !postgres {
            let text = "more than one instance needs PostgreSQL: --database postgres://...";
            return Err(SoakError::Usage(text.to_owned()));
        }
        let control = Control { latency_ms: Some(LATENCY_MS), jitter_ms: Some(JITTER_MS), ..Control::default() };
        let emulator = Emulator::start(Settings { control, ..Settings::default() })?;
        let redis = match &options.redis_url {
            Some(url) => Some(Redis::before(url).await?),
            None if postgres => Some(Redis::start(&home).await?),
            None => None,
        };
        let (secret, entry) = keys::generate("soak", Scope::ALL).map_err(|fault| SoakError::Part(fault.to_string()))?;
        let redis_url = redis.as_ref().map(Redis::url).unwrap_or_default();
        let settings = settings(options, &home, &emulator, (&entry, &redis_url))?;
        let fcm = fcm(&settings)?;
        let file =
            std::fs::File::create(home.file("service.log")).map_err(|fault| SoakError::Part(fault.to_string()))?;
        let (log, lines) = mpsc::unbounded_channel::<Value>();
        let collected = tokio::spawn(Collected::all(lines, file));
        let binary = std::env::current_exe().map_err(|fault| SoakError::Part(fault.to_string()))?;
        let mut fleet = Fleet::new(binary, settings, SecretString::from(secret), options.instances, log);
        if postgres {
            fleet.migrate().await?;
        }
        for seat in 0..options.instances {
            fleet.start(seat).await?;
        }
        let (own_redis, rate, before) = (options.redis_url.is_none(), options.rate, BTreeMap::new());
        let run = run.to_owned();
        Ok(Self { run, emulator, redis, own_redis, fleet, postgres, rate, fcm, before, collected, _home: home })
    }

    /// Registers the devices of a day.
    ///
    /// # Errors
    /// [`SoakError::Part`] when not all are taken.
    pub async fn import(&self, day: &Day) -> Result<(), SoakError> {
        let lines = audience::lines(&self.run, day);
        let wanted = lines.len() as u64;
        let lines: Vec<_> = lines.into_iter().map(|line| Ok(Bytes::from(line))).collect();
        let answer = self.any()?.import(futures_util::stream::iter(lines)).await;
        let answer = answer.map_err(|fault| SoakError::Part(format!("the import: {fault}")))?;
        if answer.imported == wanted {
            Ok(())
        } else {
            Err(SoakError::Part(format!("the import took {} of {wanted}", answer.imported)))
        }
    }

    fn any(&self) -> Result<Client, SoakError> {
        let seat = self.fleet.seats.all().into_iter().next();
        seat.map(|seat| seat.client).ok_or_else(|| SoakError::Part("no instance runs".to_owned()))
    }

    /// What faults can hit.
    #[must_use]
    pub fn victims(&self) -> Victims {
        let no_redis = if self.redis.is_some() { None } else { Some("there is no Redis: SQLite has one instance") };
        Victims { no_redis, no_process: None }
    }

    /// What was asked for, with what came of it.
    #[must_use]
    pub fn setup(&self, options: &Options, day: &Day) -> Setup {
        let redis = match (&self.redis, self.own_redis) {
            (None, _) => "none",
            (Some(_), true) => "own",
            (Some(_), false) => "given",
        };
        Setup {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seed: options.seed,
            seconds: options.minutes * 60.0,
            faults: options.faults.to_string(),
            rate: options.rate,
            instances: options.instances,
            database: if self.postgres { "postgres" } else { "sqlite" }.to_owned(),
            redis: redis.to_owned(),
            matches: day.fixtures.len(),
            devices: day.devices(),
            largest_audience: day.fixtures.iter().map(|f| f.audience).max().unwrap_or(0),
        }
    }

    /// Nothing yet, but what does not change.
    #[must_use]
    pub fn observed(&self) -> Observed {
        let fcm = &self.fcm;
        Observed {
            instances: self.fleet.size(),
            exposure: u64::from(fcm.exposure()),
            slots: u64::from(fcm.slots),
            stall_after_ms: fcm.stall_after_ms,
            ..Observed::default()
        }
    }

    /// Where the instances are.
    #[must_use]
    pub fn seats(&self) -> Seats {
        self.fleet.seats.clone()
    }

    /// What is hit, and the provider to look at meanwhile.
    pub fn targets(&mut self) -> (Targets<'_>, &Emulator) {
        let Self { emulator, redis, fleet, rate, .. } = self;
        (Targets { emulator, redis: redis.as_mut(), fleet, rate: *rate }, emulator)
    }

    /// Now: ns of the provider's log, and Unix ms.
    #[must_use]
    pub fn now(&self) -> (u64, i64) {
        let unix = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000;
        (self.emulator.stats().uptime_ms * 1_000_000, i64::try_from(unix).unwrap_or(0))
    }

    /// Notes what the instances use before the day.
    pub async fn rest_before(&mut self) {
        for seat in self.fleet.seats.all() {
            self.before.insert(seat.seat, sample::rest(&seat).await);
        }
    }

    /// Waits until every fan-out is settled, or as long as there is patience, and keeps what is told of them.
    pub async fn settle(&self, o: &mut Observed) {
        let begun = Instant::now();
        let mut open: Vec<String> = o.posted.iter().filter_map(|p| p.fanout.clone()).collect();
        open.sort_unstable();
        open.dedup();
        while !open.is_empty() {
            let mut left = Vec::new();
            for id in open {
                match self.told(&id).await {
                    Some(fanout) => {
                        if fanout.settled_at.is_none() {
                            left.push(id.clone());
                        }
                        o.fanouts.insert(id, fanout);
                    }
                    None => left.push(id),
                }
            }
            open = left;
            if begun.elapsed() > PATIENCE {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn told(&self, id: &str) -> Option<Fanout> {
        let client = self.any().ok()?;
        tokio::time::timeout(LOOK, client.fanout(id, Duration::ZERO)).await.ok()?.ok()
    }

    /// Looks at everything once more, ends the instances, reads the provider's log.
    ///
    /// # Errors
    /// [`SoakError::Part`] when the devices cannot be read.
    pub async fn close(mut self, o: &mut Observed, faults: &Faults) -> Result<(), SoakError> {
        for seat in self.fleet.seats.all() {
            // Whoever has taken the place of another should need no more than that one did.
            if let Some(before) = self.before.get(&seat.seat) {
                o.rest.push((*before, sample::rest(&seat).await));
            }
        }
        o.condemned = condemned(&self.any()?, &self.run).await?;
        for Seat { seat, .. } in self.fleet.seats.all() {
            if let Err(fault) = self.fleet.terminate(seat).await {
                o.mishaps.push(fault.to_string());
            }
        }
        // With the last instance and the fleet, whoever logs is gone.
        drop(self.fleet);
        if let Ok(Collected { lines, complaints }) = self.collected.await {
            (o.lines, o.complaints) = (lines, complaints);
        }
        let mut stories = Keys::default();
        for (id, story) in o.posted.iter().map(|p| (&p.event_id, p.story)) {
            stories.add(id, story);
        }
        let log = self.emulator.log();
        o.seen = Seen::read(&log, &stories, o.posted.len());
        let stalling = log.iter().filter(|entry| entry.attempt == 1 && stalls(&entry.token));
        let at = stalling.map(|entry| entry.t_ns.saturating_sub(o.began_ns) / 1_000_000);
        o.stalled_ms = at.filter(|ms| faults.stalls_at(*ms)).collect();
        self.emulator.stop().await;
        Ok(())
    }
}

/// The settings of the instances over those of this process.
fn settings(
    options: &Options,
    home: &Home,
    emulator: &Emulator,
    (entry, redis_url): (&str, &str),
) -> Result<Environment, SoakError> {
    let types = home.write("types.toml", &audience::catalogue())?;
    let sqlite = format!("sqlite:{}", home.file("fanfare.db").display());
    let own = [
        ("API__LISTEN", "127.0.0.1:0"),
        ("OPS__LISTEN", "127.0.0.1:0"),
        ("API__KEYS", entry),
        ("DATABASE__URL", options.database_url.as_deref().unwrap_or(&sqlite)),
        ("DATABASE__MAX_CONNECTIONS", "8"),
        ("REDIS__URL", redis_url),
        ("FCM__ENDPOINT", emulator.endpoint()),
        ("FCM__CREDENTIALS", &emulator.key_json()),
        ("FCM__PROJECT_ID", emulator.project()),
        ("CEILING__RATE_PER_S", &options.rate.to_string()),
        ("CEILING__QUOTA_PER_MINUTE", "100000000"),
        ("TYPES__FILE", &types.display().to_string()),
        ("LOG__FORMAT", "json"),
        ("LOG__FILTER", "info"),
    ];
    Ok(own.iter().map(|(name, value)| (format!("FANFARE__{name}"), (*value).to_owned())).collect())
}

/// What is set of sending, in this process's environment too.
fn fcm(settings: &Environment) -> Result<Fcm, SoakError> {
    let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
    let mut env: Environment = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
    env.extend(settings.clone());
    Ok(load(None, &env)?.config.fcm)
}

/// Device tokens of this soak that are sent to no more.
async fn condemned(client: &Client, run: &str) -> Result<Vec<String>, SoakError> {
    let part = |fault: crate::client::ClientError| SoakError::Part(format!("the export: {fault}"));
    let mut bytes = Vec::new();
    for state in ["tombstoned", "suspended"] {
        let mut pieces = client.export(Format::Ndjson, Some(&state.to_owned())).await.map_err(part)?;
        while let Some(piece) = pieces.next().await.map_err(part)? {
            bytes.extend_from_slice(&piece);
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let tokens =
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()?["token"].as_str().map(str::to_owned));
    let mine = format!("-{run}-");
    Ok(tokens.filter(|token| token.contains(&mine)).collect())
}

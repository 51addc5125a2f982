//! Owns where grants come from at this moment: Redis for the fleet, or this instance's own share.
//! Must never know: how many are asked for and why, or what they are used for.

use std::sync::Arc;
use std::time::Duration;

use redis::Client;
use tokio::time::Instant;

use super::board::Board;
use super::bucket::Reservation;
use super::dwell::Dwell;
use super::lane::{Allowed, Lane};
use super::link::{self, Away, Link};
use super::pace::Pace;
use super::redis::{RedisAway, client};
use super::{Mode, Settings};

/// Time in which every other instance has made a heartbeat (they beat every 3 s) and knows of a new one.
const JOINING: Duration = Duration::from_secs(3);

/// Leave for the OAuth call: it is made once an hour, or after a 401.
const OAUTH: Allowed = Allowed { per_s: 10.0, burst: 5.0 };

/// What leave is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// A push.
    Send,
    /// A credential.
    Oauth,
}

/// What applies now, for those who only look.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InForce {
    pub mode: Mode,
    pub live: u32,
    pub pace: Pace,
    pub used_per_s: f64,
    pub reason: String,
}

/// The source of grants.
pub(super) struct Source {
    board: Arc<Board>,
    client: Option<Client>,
    link: Link,
    mode: Mode,
    send: Lane,
    oauth: Lane,
    live: u32,
    dwell: Dwell,
}

impl Source {
    pub(super) fn new(settings: &Settings, live: u32, board: Arc<Board>) -> Self {
        let now = Instant::now();
        let allowed = Allowed { per_s: settings.rate_per_s, burst: settings.burst };
        let single = settings.redis_url.is_none() && !settings.shared_database;
        let (client, link) = match settings.redis_url.as_ref().map(client) {
            None => (None, Link::None),
            Some(Ok(client)) => (Some(client), Link::None),
            Some(Err(away)) => (None, Link::Broken(away)),
        };
        let mut source = Self {
            board,
            client,
            link,
            mode: if single { Mode::Single } else { Mode::Split },
            send: Lane::new(&settings.project, "fcm.send", allowed, now),
            oauth: Lane::new(&settings.project, "oauth.token", OAUTH, now),
            live: 1,
            dwell: Dwell::new(),
        };
        source.set_live(live);
        source
    }

    /// The first try to reach Redis: with it, the fleet's rate from the start; without, this instance's share.
    pub(super) async fn start(&mut self) {
        if let Some(client) = self.client.clone() {
            match link::reach(&client, &self.send.ping()).await {
                Ok(connection) => {
                    self.mode = Mode::Shared;
                    self.link = Link::Up(connection);
                }
                Err(away) => self.leave(away),
            }
        }
        if self.mode == Mode::Split && self.live > 1 {
            // The others go on with larger shares until their next heartbeat tells them of this instance.
            self.send.start_empty(self.live, Instant::now() + JOINING);
        }
        let (mode, rate, reason) = (self.mode.as_str(), self.send.rate(), self.reason());
        tracing::info!(target: "fanfare::ceiling", mode, rate, live = self.live, reason, "ceiling starts");
    }

    /// The number of live instances changed.
    pub(super) fn set_live(&mut self, live: u32) {
        // Alone on its database, this instance is all there is; with none counted yet, it is at least one.
        self.live = if self.mode == Mode::Single { 1 } else { live.max(1) };
        self.send.split(self.live);
        self.oauth.split(self.live);
    }

    /// The provider throttled this instance.
    pub(super) fn throttle(&mut self, until: Instant, now: Instant) {
        self.send.throttle(until, now);
    }

    /// Tells the fleet of a throttle at once, also when nothing is wanted.
    pub(super) async fn tell(&mut self) {
        if self.send.has_news() && self.is_far() {
            self.ask_fleet(Operation::Send, 0).await;
        }
    }

    /// Asks for up to `want` grants, from wherever they come now.
    pub(super) async fn reserve(&mut self, operation: Operation, want: u32) -> Reservation {
        let now = Instant::now();
        if !self.is_far() {
            return self.lane(operation).reserve(want, now);
        }
        let own = self.dwell.is_settling(now).then(|| self.lane(operation).reserve_beside_fleet(want, now));
        let (want, not_before) = match own {
            Some(Reservation::Wait(hint)) => return Reservation::Wait(hint),
            Some(Reservation::Granted(run)) => (run.n, run.first),
            None => (want, now),
        };
        match self.ask_fleet(operation, want).await {
            Some(Reservation::Granted(mut run)) => {
                run.first = run.first.max(not_before);
                Reservation::Granted(run)
            }
            Some(refused) => refused,
            None => self.lane(operation).reserve(want, Instant::now()),
        }
    }

    /// One question to Redis. `None`: it went away.
    async fn ask_fleet(&mut self, operation: Operation, want: u32) -> Option<Reservation> {
        let Link::Up(connection) = &mut self.link else { return None };
        let lane = match operation {
            Operation::Send => &mut self.send,
            Operation::Oauth => &mut self.oauth,
        };
        let asked = Instant::now();
        match connection.ask(&lane.question(want, asked)).await {
            Ok(answer) => match lane.answer(&answer, asked, Instant::now()) {
                Ok(reservation) => Some(reservation),
                Err(forfeited) => {
                    self.board.count_forfeited(u64::from(forfeited));
                    Some(Reservation::Wait(Duration::ZERO))
                }
            },
            Err(away) => {
                self.leave(away);
                None
            }
        }
    }

    /// Completes when Redis went away and is back; never otherwise. May be dropped and called again.
    pub(super) async fn back(&mut self) {
        let Link::Away(away) = &mut self.link else { return std::future::pending().await };
        let connection = away.back().await;
        self.link = Link::Up(connection);
        self.dwell.come_back(Instant::now());
        let reason = "redis answers again";
        let (from, to) = (self.mode.as_str(), Mode::Shared.as_str());
        self.mode = Mode::Shared;
        tracing::info!(target: "fanfare::ceiling", from, to, reason, live = self.live, "ceiling mode changed");
    }

    /// Redis is away: this instance's own share, from empty, at once.
    fn leave(&mut self, reason: RedisAway) {
        let now = Instant::now();
        let stay = self.dwell.leave(now);
        self.send.start_empty(self.live, now);
        self.oauth.start_empty(self.live, now);
        let (from, to, why) = (self.mode.as_str(), Mode::Split.as_str(), reason.to_string());
        if from == to {
            // At start: it was never shared.
            tracing::warn!(target: "fanfare::ceiling", mode = to, reason = why, live = self.live, "redis is away at start");
        } else {
            tracing::warn!(target: "fanfare::ceiling", from, to, reason = why, live = self.live, "ceiling mode changed");
        }
        self.mode = Mode::Split;
        if let Some(client) = self.client.clone() {
            self.link = Link::Away(Box::new(Away::new(client, self.send.ping(), reason, now + stay)));
        }
    }

    /// What applies now.
    pub(super) fn in_force(&self, used_per_s: f64) -> InForce {
        InForce { mode: self.mode, live: self.live, pace: *self.send.pace(), used_per_s, reason: self.reason() }
    }

    /// Whether asking costs a round trip.
    pub(super) const fn is_far(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Requests per second of the whole fleet.
    pub(super) const fn rate(&self) -> f64 {
        self.send.rate()
    }

    /// Why the mode is what it is; empty when that needs no reason.
    fn reason(&self) -> String {
        match &self.link {
            Link::Away(away) => away.reason().to_string(),
            Link::Broken(reason) => reason.to_string(),
            Link::None if self.mode == Mode::Split => "redis: not configured beside a shared database".to_owned(),
            Link::None | Link::Up(_) => String::new(),
        }
    }

    const fn lane(&mut self, operation: Operation) -> &mut Lane {
        match operation {
            Operation::Send => &mut self.send,
            Operation::Oauth => &mut self.oauth,
        }
    }
}

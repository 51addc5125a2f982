//! Owns tests of the dispatcher as one: what comes in, what is in hand, what goes back. Nothing is sent: a recipient that
//! could be launched is picked and left there.
//! Must never know: anything outside the room.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::decide::Delivery;
use super::dispatch::Dispatcher;
use super::flight::Slots;
use super::gates::{Credit, Gates};
use super::hand::Spot;
use super::totals::Totals;
use super::wiring::{Pacing, Wiring};
use super::{Hands, MOST_OPEN, ToSender};
use crate::breaker::{Breaker, BreakerSettings};
use crate::ceiling::Ceiling;
use crate::clock::{Boot, DbClock};
use crate::domain::batch::{ClaimedChunk, Class, FanoutJob, Outbound, RestOutcome};
use crate::domain::bitmap::Bitmap;
use crate::domain::catalogue::{BUILT_IN, Catalogue, LiveCatalogue};
use crate::domain::derived::{Cap, Origin};
use crate::domain::event::Event;
use crate::domain::ids::{ChunkRef, DeviceKey, EventId, FanoutId, MatchId};
use crate::domain::outcome::{Cause, CredentialFault, Outcome};
use crate::domain::recipient::{Address, Locale, Platform, Recipient};
use crate::fcm::connections::{Connections, Settings};
use crate::fcm::http::TokenHttp;
use crate::fcm::metadata::MetadataServer;
use crate::fcm::oauth::Tokens;

mod waiting;

struct Bench {
    d: Dispatcher,
    started_ms: i64,
    _ends: (watch::Sender<u32>, mpsc::UnboundedSender<ToSender>, mpsc::UnboundedReceiver<Outbound>),
}

impl Bench {
    fn new() -> Self {
        let ceiling = crate::ceiling::Settings {
            rate_per_s: 1_000.0,
            burst: 10.0,
            redis_url: None,
            project: "test".to_owned(),
            shared_database: false,
        };
        let (live, receiver) = watch::channel(1);
        let (ceiling, grants) = Ceiling::start(ceiling, receiver, CancellationToken::new());
        let nobody = MetadataServer::at("127.0.0.1:1").unwrap();
        let http = TokenHttp::new(None, Duration::from_secs(1)).unwrap();
        let tokens = Tokens::start(nobody, http, ceiling.charger(), SystemTime::now);
        let (to_sender, inbox) = mpsc::unbounded_channel();
        let (outbound, out) = mpsc::unbounded_channel();
        let clock = Arc::new(DbClock::from_wall());
        let started_ms = clock.now_ms();
        let catalogue = LiveCatalogue::new(Catalogue::parse(BUILT_IN).unwrap());
        let hands = Arc::new(Hands::new(32, Totals::default()));
        let wiring = Wiring { inbox, grants, outbound, tokens, ceiling, clock, catalogue, hands };
        let slots = Slots { slots: 32, lent: 16, stall_after: Duration::from_secs(1) };
        let pacing = Pacing { slots, unflushed: 16, retry_delay: Duration::from_millis(250) };
        let connections = Connections::new(&Settings {
            endpoint: "http://127.0.0.1:1".to_owned(),
            ca_pem: None,
            project_id: "test".to_owned(),
            max_streams_total: 48,
            streams_per_connection: 100,
            attempt_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(1),
        });
        let mut gates = Gates::new(Breaker::new(BreakerSettings::default()));
        gates.renew(Boot::now().plus(Duration::from_secs(3600)));
        let d = Dispatcher::new(wiring, pacing, connections.unwrap(), gates);
        Self { d, started_ms, _ends: (live, to_sender, out) }
    }

    /// A fan-out's job, so many seconds before its deadline.
    fn job(&self, id: i64, left_s: i64, cap: Option<Cap>) -> Arc<FanoutJob> {
        let fields = ["home", "away", "score", "player"].map(|f| (f.to_owned(), f.into()));
        let event = Event {
            id: EventId::parse("e").unwrap(),
            kind: "goal".to_owned(),
            match_id: MatchId::parse("m").unwrap(),
            occurred_ms: self.started_ms,
            subjects: vec!["match:m".to_owned()],
            fields: BTreeMap::from(fields),
            data: BTreeMap::new(),
            useful_for_s: 120,
            supersedes: None,
        };
        Arc::new(FanoutJob {
            id: FanoutId(id),
            event,
            class: Class::Urgent,
            accepted_ms: self.started_ms,
            deadline_ms: self.started_ms + left_s * 1_000,
            origin: Origin { cap, ..Origin::default() },
        })
    }

    fn take(&mut self, job: &Arc<FanoutJob>, no: i32, epoch: i32, platforms: &[Platform]) {
        let claimed = claimed(job, (no, epoch), 6, platforms);
        self.receive(claimed, job);
    }

    fn receive(&mut self, claimed: ClaimedChunk, job: &Arc<FanoutJob>) {
        self.d.receive(ToSender::Chunks(vec![(claimed, Arc::clone(job))]));
    }

    /// Everybody who could be launched now, and is not; whoever waits for a credential is set aside.
    fn picked(&mut self) -> Vec<Spot> {
        std::iter::from_fn(|| self.d.pick()).collect()
    }

    fn look(&mut self) -> Vec<Spot> {
        self.d.now += Duration::from_millis(250);
        let picked = self.picked();
        self.d.put_off();
        picked
    }

    fn refuse(&mut self, platform: Platform) {
        self.d.gates.note(Credit::Refused(CredentialFault::Platform), platform, self.d.now);
    }

    fn in_hand(&self) -> Vec<(FanoutId, i32)> {
        self.d.hand.iter().map(|(key, _)| (key.chunk.fanout, key.chunk.no)).collect()
    }

    fn sent(&mut self) -> Outbound {
        self.d.outbox.due(self.d.now, true).unwrap_or_default()
    }
}

fn claimed(job: &FanoutJob, (no, epoch): (i32, i32), n: i64, platforms: &[Platform]) -> ClaimedChunk {
    let recipient = |key: i64| Recipient {
        key: DeviceKey(key),
        address: Address::Token(format!("t{key}")),
        platform: platforms[usize::try_from(key).unwrap() % platforms.len()],
        locale: Locale::default(),
        version: 1,
    };
    let bits = || Bitmap::new(usize::try_from(n).unwrap());
    ClaimedChunk {
        chunk: ChunkRef { fanout: job.id, no },
        epoch,
        class: job.class,
        rank: i64::from(no),
        recipients: (0..n).map(|key| Some(recipient(key))).collect(),
        keys: (0..n).map(DeviceKey).collect(),
        done: bits(),
        maybe: bits(),
    }
}

fn put_off(out: &Outbound) -> Vec<i32> {
    let mut chunks: Vec<i32> = out.put_off.iter().flat_map(|p| &p.chunks).map(|(chunk, _)| chunk.no).collect();
    chunks.sort_unstable();
    chunks
}

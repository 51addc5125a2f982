//! Random operations of three instances against a model in memory: freezing, claiming, sending, flushing, with lost
//! answers, stalls, crashes, clocks that jump, a cancel, orderly releases. After each of them the store's tally and its
//! answers are those of the model, and at the end nobody was lost and few were sent to twice.
//!
//! proptest makes the operations and shrinks them: a failing story comes out as the few operations that matter, and
//! running it again needs no seed. It drives the runner, not the async code: each story blocks a thread of the runtime.
//! The seed is fixed, so that a change is tested against what the last one passed; `FANFARE_SEED` chooses another, and
//! the longer suite (`FANFARE_LONG=1`) draws one and prints it.

mod instance;
mod kept;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use fanfare::domain::batch::Class;
use fanfare::domain::ids::{BootId, ChunkRef, DeviceKey, FanoutId};
use fanfare::domain::outcome::Outcome;
use fanfare::ledger::buffer::Taken;
use fanfare::store::{CancelReply, FreezeReply, FreezeStep, SettleReply};
use futures_util::FutureExt;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::world::*;
use instance::{EXPOSURE, Fate, Instance};
use kept::{Kept, State};

const INSTANCES: usize = 3;
const FOLLOWERS: usize = 18;
/// Longer than a story takes.
const LEASE_MS: i64 = 60_000;

/// How a flush goes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    Acknowledged,
    /// It is written, and nobody hears of it.
    AnswerLost,
    /// It never arrives.
    Lost,
}

#[derive(Debug, Clone)]
enum Op {
    Step {
        who: usize,
        sizes: Vec<usize>,
        owned: usize,
        repeated: bool,
    },
    Claim {
        who: usize,
        want: u32,
        answer_lost: bool,
    },
    Recollect {
        who: usize,
    },
    Launch {
        who: usize,
        n: usize,
        fate: Fate,
    },
    Land {
        who: usize,
        n: usize,
        newest: bool,
    },
    Flush {
        who: usize,
        how: How,
    },
    Beat {
        who: usize,
    },
    /// Stopped for longer than its lease; it wakes up with what it knew.
    Stall {
        who: usize,
    },
    /// The database's clock jumps past its lease, and it does not know.
    Jump {
        who: usize,
    },
    Crash {
        who: usize,
    },
    Release {
        who: usize,
    },
    Expire {
        who: usize,
    },
    Remove {
        device: usize,
    },
    Cancel,
    Settle,
}

fn op() -> impl Strategy<Value = Op> {
    let who = || 0..INSTANCES;
    let fate = prop_oneof![
        6 => Just(Fate::Reached), 2 => Just(Fate::Unanswered), 1 => Just(Fate::Down), 1 => Just(Fate::Dead)
    ];
    let how = prop_oneof![4 => Just(How::Acknowledged), 2 => Just(How::AnswerLost), 1 => Just(How::Lost)];
    let step = (who(), vec(1_usize..7, 1..3), 0_usize..3, any::<bool>());
    prop_oneof![
        6 => step.prop_map(|(who, sizes, owned, repeated)| Op::Step { who, sizes, owned, repeated }),
        6 => (who(), 1_u32..3, prop::bool::weighted(0.2))
            .prop_map(|(who, want, answer_lost)| Op::Claim { who, want, answer_lost }),
        1 => who().prop_map(|who| Op::Recollect { who }),
        10 => (who(), 1_usize..8, fate).prop_map(|(who, n, fate)| Op::Launch { who, n, fate }),
        9 => (who(), 1_usize..8, any::<bool>()).prop_map(|(who, n, newest)| Op::Land { who, n, newest }),
        10 => (who(), how).prop_map(|(who, how)| Op::Flush { who, how }),
        4 => who().prop_map(|who| Op::Beat { who }),
        2 => who().prop_map(|who| Op::Stall { who }),
        1 => who().prop_map(|who| Op::Jump { who }),
        2 => who().prop_map(|who| Op::Crash { who }),
        1 => who().prop_map(|who| Op::Release { who }),
        2 => who().prop_map(|who| Op::Expire { who }),
        1 => (0..FOLLOWERS).prop_map(|device| Op::Remove { device }),
        2 => prop::bool::weighted(0.1).prop_map(|cancel| if cancel { Op::Cancel } else { Op::Settle }),
    ]
}

/// Stories by default, and in the longer suite.
const STORIES: u32 = 16;
const LONG_STORIES: u32 = 1000;

pub async fn random_operations_agree_with_a_model(store: Shared) {
    let long = std::env::var("FANFARE_LONG").is_ok_and(|long| long == "1");
    let chosen = std::env::var("FANFARE_SEED").ok().map(|seed| seed.parse().expect("FANFARE_SEED is a number"));
    let seed: u64 = chosen.unwrap_or_else(|| if long { rand::random() } else { 4711 });
    println!("FANFARE_SEED={seed}");
    // A fault that tests/mutants planted is to be found, and nobody reads the story of it.
    let planted = std::env::var("FANFARE_MUTANT").is_ok_and(|fault| !fault.is_empty());
    let max_shrink_iters = if planted { 0 } else { 400 };
    let config = Config {
        cases: if long || planted { LONG_STORIES } else { STORIES },
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters,
        ..Config::default()
    };
    let (runtime, told) = (tokio::runtime::Handle::current(), Cell::new(0));
    let ended = tokio::task::block_in_place(|| {
        TestRunner::new(config).run(&vec(op(), 20..120), |ops| {
            told.set(told.get() + 1);
            runtime.block_on(story(&store, told.get(), ops));
            Ok(())
        })
    });
    ended.unwrap_or_else(|failure| panic!("FANFARE_SEED={seed}: {failure}"));
}

/// One story on a fan-out of its own; whatever comes of it, it leaves nothing behind for the next one.
async fn story(store: &Shared, number: u32, ops: Vec<Op>) {
    let mut world = World::new(store.clone(), number).await;
    let told = AssertUnwindSafe(world.tell(ops)).catch_unwind().await;
    for boot in &world.boots {
        store.leave(*boot).await.unwrap();
    }
    store.cancel(world.fanout).await.unwrap();
    store.settle(world.fanout).await.unwrap();
    told.unwrap_or_else(|panic| resume_unwind(panic));
}

struct World {
    store: Shared,
    fanout: FanoutId,
    name: String,
    followers: Vec<DeviceKey>,
    instances: Vec<Instance>,
    /// Every start there ever was.
    boots: Vec<BootId>,
    kept: Kept,
    /// How often the provider accepted a message for each.
    accepted: BTreeMap<DeviceKey, usize>,
    removed: BTreeSet<DeviceKey>,
    /// Most recipients that may have been sent to again for the faults so far.
    may_repeat: usize,
}

impl World {
    async fn new(store: Shared, number: u32) -> Self {
        let name = format!("m{number}");
        let followers = followers(&store, &name, FOLLOWERS).await;
        let mut boots = Vec::new();
        for _ in 0..INSTANCES {
            boots.push(instance(&store).await);
        }
        let freeze = accept(&store, boots[0], &name, Class::Urgent).await;
        let job = Arc::new(freeze.job.clone());
        let mut instances: Vec<Instance> = boots.iter().map(|boot| Instance::new(*boot, Arc::clone(&job))).collect();
        instances[0].freeze = Some(freeze);
        let (kept, accepted, removed) = (Kept::new(boots[0]), BTreeMap::new(), BTreeSet::new());
        Self { store, fanout: job.id, name, followers, instances, boots, kept, accepted, removed, may_repeat: 0 }
    }

    async fn tell(&mut self, ops: Vec<Op>) {
        for op in ops {
            match op {
                Op::Step { who, sizes, owned, repeated } => self.step(who, sizes, owned, repeated).await,
                Op::Claim { who, want, answer_lost } => self.claim(who, want, answer_lost).await,
                Op::Recollect { who } => self.recollect(who).await,
                Op::Launch { who, n, fate } => self.launch(who, n, fate),
                // Sent again, what was accepted without an answer is accepted twice.
                Op::Land { who, n, newest } => self.may_repeat += self.instances[who].land(n, newest),
                Op::Flush { who, how } => self.flush(who, how).await,
                Op::Beat { who } => self.beat(who).await,
                Op::Stall { who } => {
                    self.instances[who].trusted = false;
                    self.lapse(who, self.instances[who].exposed()).await;
                }
                // What it may repeat is counted when its chunks are taken.
                Op::Jump { who } => self.lapse(who, 0).await,
                Op::Crash { who } => self.crash(who).await,
                Op::Release { who } => self.instances[who].release_all(),
                Op::Expire { who } => self.instances[who].expire(),
                Op::Remove { device } => self.remove(device).await,
                Op::Cancel => self.cancel().await,
                Op::Settle => self.settle().await,
            }
            self.agree().await;
        }
        self.finish().await;
        self.nobody_is_lost();
    }

    /// The store says what the model says; once settled, what it said then.
    async fn agree(&self) {
        let view = self.store.fanout(self.fanout).await.unwrap().unwrap();
        if let Some(settled) = &self.kept.settled {
            assert_eq!(&view, settled, "settled for good");
            return;
        }
        assert_eq!(view.tally, self.kept.tally());
        assert_eq!(view.counters.attempts, self.kept.parts.values().sum::<u64>(), "counters are absolute");
        assert_eq!(view.interrupted, self.kept.interrupted);
    }

    async fn step(&mut self, who: usize, sizes: Vec<usize>, owned: usize, repeated: bool) {
        if self.instances[who].freeze.is_none() && !self.take_freeze(who).await {
            return;
        }
        let (instance, frozen) = (&mut self.instances[who], self.kept.frozen());
        let job = instance.freeze.as_mut().unwrap();
        // A freezer that has lost its freeze reads on where it stands, and must not get through with it.
        let stands = job.next_chunk;
        let read = self.followers.iter().filter(|key| **key > job.cursor).copied().collect::<Vec<_>>();
        let mut step = FreezeStep {
            boot: instance.boot,
            fanout: self.fanout,
            epoch: job.epoch,
            from: job.cursor,
            chunks: Vec::new(),
            first_chunk: stands,
            ranks: Vec::new(),
            claim_first: owned,
            never_saw: None,
            last: false,
        };
        let mut rest = read.as_slice();
        for size in sizes {
            let (chunk, tail) = rest.split_at(size.min(rest.len()));
            rest = tail;
            if !chunk.is_empty() {
                step.ranks.push(i64::from(stands) + step.chunks.len() as i64);
                step.chunks.push(chunk.to_vec());
            }
        }
        step.last = rest.is_empty();
        let freeze = &mut self.kept.freeze;
        let mine = freeze.owner == instance.boot && freeze.epoch == step.epoch && !self.kept.cancelled && !freeze.over;
        let reply = self.store.freeze_step(step.clone()).await.unwrap();
        if repeated {
            assert_eq!(self.store.freeze_step(step.clone()).await.unwrap(), reply, "a repeated step answers the same");
        }
        let FreezeReply::Written(claimed) = reply else {
            assert!(!mine || freeze.doubtful, "it was ours: {step:?}");
            instance.freeze = None;
            return;
        };
        assert!(mine, "it was not ours: {step:?}");
        assert_eq!(frozen, self.followers.len() - read.len(), "it goes on where it stopped");
        assert_eq!(claimed.len(), owned.min(step.chunks.len()));
        job.cursor = step.chunks.last().map_or(job.cursor, |chunk| *chunk.last().unwrap());
        job.next_chunk += step.chunks.len() as i32;
        if step.last {
            freeze.over = true;
            instance.freeze = None;
        }
        for (i, keys) in step.chunks.into_iter().enumerate() {
            let chunk = ChunkRef { fanout: self.fanout, no: stands + i as i32 };
            self.kept.add(chunk, keys, (i < owned).then_some(instance.boot));
        }
        instance.take(claimed);
    }

    /// Whether a freeze that nobody alive runs was found.
    async fn take_freeze(&mut self, who: usize) -> bool {
        let instance = &mut self.instances[who];
        let freeze = &mut self.kept.freeze;
        let open = !freeze.over && !self.kept.cancelled;
        let jobs = self.store.take_freezes(instance.boot, vec![], 9).await.unwrap();
        let Some(job) = jobs.into_iter().next() else {
            assert!(!open || freeze.doubtful || !self.kept.lapsed.contains(&freeze.owner), "it is left behind");
            return false;
        };
        assert!(open && (freeze.doubtful || self.kept.lapsed.contains(&freeze.owner)), "its owner lives");
        assert_eq!((job.job.id, job.epoch), (self.fanout, freeze.epoch + 1));
        (freeze.owner, freeze.epoch, freeze.doubtful) = (instance.boot, job.epoch, false);
        instance.freeze = Some(job);
        true
    }

    async fn claim(&mut self, who: usize, want: u32, answer_lost: bool) {
        let instance = &mut self.instances[who];
        let open = self.kept.chunks.iter_mut().filter(|(_, c)| c.state == State::Open && !self.kept.cancelled);
        let expected: Vec<_> = open.take(want as usize).collect();
        let got = claim(&self.store, instance.boot, want).await;
        assert_eq!(got.iter().map(|c| c.chunk).collect::<Vec<_>>(), expected.iter().map(|e| *e.0).collect::<Vec<_>>());
        for (claimed, (_, chunk)) in got.iter().zip(expected) {
            (chunk.state, chunk.epoch) = (State::Owned(instance.boot), chunk.epoch + 1);
            assert_eq!((claimed.epoch, &claimed.keys), (chunk.epoch, &chunk.keys));
            assert_eq!(claimed.done, bits(chunk.keys.len(), chunk.done.iter().copied()));
            assert_eq!(claimed.maybe, bits(chunk.keys.len(), chunk.maybe()));
            let live = chunk.keys.iter().map(|key| !self.removed.contains(key));
            assert!(claimed.recipients.iter().map(Option::is_some).eq(live));
        }
        if !answer_lost {
            instance.take(got);
        }
    }

    /// What it owns without having been told.
    async fn recollect(&mut self, who: usize) {
        let instance = &mut self.instances[who];
        let owned = self.store.owned(instance.boot).await.unwrap();
        let mine = self.kept.chunks.iter().filter(|(_, c)| c.state == State::Owned(instance.boot));
        let mine: Vec<_> = mine.map(|(chunk, kept)| (*chunk, kept.epoch)).collect();
        assert_eq!(owned.iter().map(|c| (c.chunk, c.epoch)).collect::<Vec<_>>(), mine);
        instance.take(owned);
    }

    fn launch(&mut self, who: usize, n: usize, fate: Fate) {
        for key in self.instances[who].launch(n, fate) {
            *self.accepted.entry(key).or_default() += usize::from(fate.accepted());
        }
    }

    /// As the flusher does it: counters, facts, then what is handed back; the same again until it is acknowledged.
    async fn flush(&mut self, who: usize, how: How) {
        let instance = &mut self.instances[who];
        let Some(Taken { batch, parts, back, .. }) = instance.writing(self.fanout) else { return };
        if how == How::Lost {
            return;
        }
        for (_, counters) in &parts {
            self.kept.parts.insert(instance.boot, counters.attempts);
        }
        self.store.put_parts(instance.boot, parts).await.unwrap();
        let expected = self.kept.flush(&batch);
        let acks = self.store.flush(batch).await.unwrap();
        assert_eq!(acks, expected);
        self.kept.release(instance.boot, &back.released);
        self.store.release(instance.boot, back.released, 0).await.unwrap();
        if how == How::Acknowledged {
            instance.written(acks);
        }
    }

    async fn beat(&mut self, who: usize) {
        let instance = &mut self.instances[who];
        let mine = |c: &kept::Chunk| c.state == State::Owned(instance.boot);
        let cancelled = self.kept.cancelled && self.kept.chunks.values().any(mine);
        let boot = instance.boot;
        let expected = self.beaten(boot);
        let instance = &mut self.instances[who];
        let beat = self.store.heartbeat(instance.boot, LEASE_MS).await.unwrap();
        assert_eq!((beat.freed_chunks, beat.set_aside), expected);
        assert_eq!(!beat.cancelled.is_empty(), cancelled);
        instance.renewed(cancelled);
    }

    /// A heartbeat in the model. An instance that loses chunks and still trusts its lease hears of it per chunk, from
    /// the answer to a flush of that chunk: until then it may send as many of each as may be exposed.
    fn beaten(&mut self, boot: BootId) -> (u32, u32) {
        for instance in self.instances.iter().filter(|i| i.trusted && i.boot != boot) {
            if self.kept.lapsed.contains(&instance.boot) {
                let taken = self.kept.chunks.values().filter(|c| c.state == State::Owned(instance.boot));
                self.may_repeat += EXPOSURE * taken.count();
            }
        }
        self.kept.beat(boot)
    }

    /// Its lease ends by the database's clock.
    async fn lapse(&mut self, who: usize, may_repeat: usize) {
        let boot = self.instances[who].boot;
        self.may_repeat += may_repeat.min(EXPOSURE);
        self.beaten(boot);
        lapse(&self.store, boot).await;
        self.kept.lapsed.insert(boot);
    }

    /// It is killed; another start takes its place.
    async fn crash(&mut self, who: usize) {
        self.instances[who].trusted = false;
        self.lapse(who, self.instances[who].exposed()).await;
        let boot = BootId::fresh();
        self.boots.push(boot);
        self.instances[who] = self.instances[who].successor(boot);
        self.beat(who).await;
    }

    async fn remove(&mut self, device: usize) {
        let id = device_id(&format!("{}-{device}", self.name));
        let there = self.store.device(id.clone()).await.unwrap();
        assert_eq!(self.store.delete_device(id).await.unwrap(), there.is_some());
        // Imported in this order, so that the keys are in it too.
        self.removed.insert(self.followers[device]);
    }

    async fn cancel(&mut self) {
        let open = !self.kept.cancelled && self.kept.settled.is_none();
        let reply = self.store.cancel(self.fanout).await.unwrap();
        assert_eq!(reply == CancelReply::Cancelled, open, "{reply:?}");
        if open {
            self.kept.cancelled = true;
            self.kept.close_cancelled();
        }
    }

    async fn settle(&mut self) {
        let before = self.kept.settled.is_some();
        let now = !before && self.kept.settles();
        let swept = self.store.sweep(0).await.unwrap().complete;
        assert_eq!(swept.contains(&self.fanout), now, "the sweep finds what nobody settled");
        match self.store.settle(self.fanout).await.unwrap() {
            SettleReply::Settled(settled) => {
                assert!(now, "settled too early, or twice");
                assert_eq!(settled.view.tally, self.kept.tally());
                self.kept.settled = Some(settled.view);
            }
            SettleReply::Open => assert!(!before && !now, "it is complete"),
            SettleReply::NotOurs => assert!(before, "nobody settled it before"),
        }
    }

    /// Everybody is killed but one, who goes on alone until the fan-out is settled.
    async fn finish(&mut self) {
        for who in 1..INSTANCES {
            self.crash(who).await;
        }
        for _ in 0..FOLLOWERS * 4 {
            self.beat(0).await;
            self.step(0, vec![6, 6, 6], 1, false).await;
            self.claim(0, 9, false).await;
            self.recollect(0).await;
            self.launch(0, FOLLOWERS, Fate::Reached);
            self.may_repeat += self.instances[0].land(FOLLOWERS, false);
            self.flush(0, How::Acknowledged).await;
            self.agree().await;
            self.settle().await;
            if self.kept.settled.is_some() {
                return;
            }
            // What was set aside waits for an operator.
            let stands = |c: &kept::Chunk| matches!(c.state, State::Closed | State::SetAside);
            if self.kept.freeze.over && self.instances[0].is_idle() && self.kept.chunks.values().all(stands) {
                self.cancel().await;
            }
        }
        panic!("it comes to no end: {:#?}", self.kept);
    }

    fn nobody_is_lost(&self) {
        let all = || self.kept.chunks.values().flat_map(|c| &c.keys).copied();
        assert!(self.kept.cancelled || all().eq(self.followers.iter().copied()), "each is frozen once");
        for chunk in self.kept.chunks.values() {
            for (i, key) in chunk.keys.iter().enumerate() {
                let sent = self.accepted.get(key).copied().unwrap_or(0);
                match chunk.outcome(i).expect("settled means that everybody has an outcome") {
                    Outcome::Delivered => assert!(sent > 0, "{key:?} got nothing and is said to be delivered"),
                    Outcome::Gone => assert!(self.removed.contains(key)),
                    _ => {}
                }
            }
        }
        let repeated: usize = self.accepted.values().map(|sent| sent.saturating_sub(1)).sum();
        assert!(repeated <= self.may_repeat, "{repeated} repeated of at most {}: {:?}", self.may_repeat, self.accepted);
    }
}

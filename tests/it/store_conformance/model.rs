//! Random operations of three instances, some of them zombies, against a model in memory: after each of them the
//! store's tally and its answers are those of the model. A failure prints its seed.

use std::collections::{BTreeMap, BTreeSet};

use fanfare::domain::batch::ChunkAck;
use fanfare::domain::ids::{BootId, ChunkRef, FanoutId};
use fanfare::domain::outcome::Outcome;
use fanfare::domain::tally::Tally;
use fanfare::store::{MAX_TAKEOVERS, SettleReply};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::world::*;

const SIZES: [usize; 4] = [1, 7, 12, 64];
const FOUND: [Outcome; 4] = [Outcome::Delivered, Outcome::TokenDead, Outcome::Transient, Outcome::Payload];

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Open,
    Owned(BootId),
    Closed,
    SetAside,
}

#[derive(Debug)]
struct Chunk {
    n: usize,
    state: State,
    epoch: i32,
    done: BTreeSet<usize>,
    ok: BTreeSet<usize>,
    failed: BTreeMap<usize, Outcome>,
    rest: Option<Outcome>,
    takeovers: i16,
    mark: usize,
    unclean: bool,
}

impl Chunk {
    fn new(n: usize) -> Self {
        let (done, ok, failed) = Default::default();
        Self { n, state: State::Open, epoch: 0, done, ok, failed, rest: None, takeovers: 0, mark: 0, unclean: false }
    }

    fn flush(&mut self, epoch: i32, found: &[(usize, Outcome)], rest: Option<Outcome>) -> (bool, bool) {
        for (i, outcome) in found {
            self.done.insert(*i);
            match outcome {
                Outcome::Delivered => drop(self.ok.insert(*i)),
                other => drop(self.failed.entry(*i).or_insert(*other)),
            }
        }
        if self.done.len() == self.n {
            self.state = State::Closed;
        } else if let (Some(outcome), State::Owned(_), true) = (rest, self.state, self.epoch == epoch) {
            self.state = State::Closed;
            self.rest = Some(outcome);
        }
        let held = matches!(self.state, State::Owned(_) | State::Closed);
        (held && self.epoch == epoch, self.state == State::Closed)
    }

    fn take_over(&mut self) {
        let progress = self.done.len() > self.mark;
        self.takeovers = if progress { 0 } else { self.takeovers + 1 };
        self.mark = self.done.len();
        self.epoch += 1;
        self.unclean = true;
        self.state = if self.takeovers >= MAX_TAKEOVERS { State::SetAside } else { State::Open };
    }
}

struct World {
    store: Shared,
    rng: StdRng,
    fanout: FanoutId,
    boots: Vec<BootId>,
    model: BTreeMap<ChunkRef, Chunk>,
    /// Every hold anybody ever had.
    holds: Vec<(BootId, Hold)>,
}

pub async fn random_operations_agree_with_a_model(store: Shared) {
    for seed in 0..4 {
        let mut world = World::new(store.clone(), seed).await;
        for step in 0..120 {
            let operation = world.random_operation().await;
            assert_eq!(tally(&store, world.fanout).await, world.tally(), "seed {seed}, step {step}: {operation}");
        }
        world.finish(seed).await;
    }
}

impl World {
    async fn new(store: Shared, seed: u64) -> Self {
        let mut boots = Vec::new();
        for _ in 0..3 {
            boots.push(instance(&store).await);
        }
        let fanout = frozen(&store, boots[0], &format!("evt{seed}"), &SIZES).await;
        let chunk = |(no, n): (usize, &usize)| (ChunkRef { fanout, no: no as i32 }, Chunk::new(*n));
        let model = SIZES.iter().enumerate().map(chunk).collect();
        Self { store, rng: StdRng::seed_from_u64(seed), fanout, boots, model, holds: Vec::new() }
    }

    async fn random_operation(&mut self) -> &'static str {
        match self.rng.random_range(0..10) {
            0..3 => self.claim().await,
            3..7 => self.flush(false).await,
            7 => self.flush(true).await,
            8 => self.release().await,
            _ => self.lose_an_instance().await,
        }
    }

    fn boot(&mut self) -> BootId {
        self.boots[self.rng.random_range(0..self.boots.len())]
    }

    async fn claim(&mut self) -> &'static str {
        let (boot, want) = (self.boot(), self.rng.random_range(1..3));
        let expected: Vec<ChunkRef> =
            self.model.iter().filter(|(_, c)| c.state == State::Open).map(|(r, _)| *r).take(want as usize).collect();
        let got = claim(&self.store, boot, want).await;
        assert_eq!(got.iter().map(|c| c.chunk).collect::<Vec<_>>(), expected);
        for claimed in &got {
            let chunk = self.model.get_mut(&claimed.chunk).unwrap();
            (chunk.state, chunk.epoch) = (State::Owned(boot), chunk.epoch + 1);
            assert_eq!(claimed.epoch, chunk.epoch);
            assert_eq!(claimed.done, bits(chunk.n, chunk.done.iter().copied()));
            let maybe = (0..chunk.n).filter(|i| chunk.unclean && !chunk.done.contains(i));
            assert_eq!(claimed.maybe, bits(chunk.n, maybe));
            self.holds.push((boot, Hold::from(claimed)));
        }
        "claim"
    }

    /// By anybody who ever held the chunk: most of them are zombies by now. Sometimes twice.
    async fn flush(&mut self, end: bool) -> &'static str {
        if self.holds.is_empty() {
            return "nothing to flush";
        }
        let recent = self.holds.len().saturating_sub(6);
        let hold = self.holds[self.rng.random_range(recent..self.holds.len())].1.clone();
        let n = hold.keys.len();
        let mut found = BTreeMap::new();
        for _ in 0..self.rng.random_range(0..=n.min(9)) {
            found.insert(self.rng.random_range(0..n), FOUND[self.rng.random_range(0..FOUND.len())]);
        }
        let found: Vec<(usize, Outcome)> = found.into_iter().collect();
        let mut batch = outcomes(&hold, &found);
        if end {
            batch.chunks[0].rest = rest(&hold, Outcome::Expired).chunks[0].rest;
        }
        for _ in 0..self.rng.random_range(1..3) {
            let acks = self.store.flush(batch.clone()).await.unwrap();
            let chunk = self.model.get_mut(&hold.chunk).unwrap();
            let (owned, closed) = chunk.flush(hold.epoch, &found, end.then_some(Outcome::Expired));
            let done = bits(n, chunk.done.iter().copied());
            assert_eq!(
                acks,
                [ChunkAck { chunk: hold.chunk, epoch: hold.epoch, owned, closed, cancelled: false, late: 0, done }],
                "{chunk:?}"
            );
        }
        "flush"
    }

    async fn release(&mut self) -> &'static str {
        if self.holds.is_empty() {
            return "nothing to release";
        }
        let (boot, hold) = self.holds[self.rng.random_range(0..self.holds.len())].clone();
        self.store.release(boot, vec![(hold.chunk, hold.epoch)], 0).await.unwrap();
        let chunk = self.model.get_mut(&hold.chunk).unwrap();
        if chunk.state == State::Owned(boot) && chunk.epoch == hold.epoch {
            chunk.state = State::Open;
        }
        "release"
    }

    async fn lose_an_instance(&mut self) -> &'static str {
        let i = self.rng.random_range(0..self.boots.len());
        let lost = self.boots[i];
        let heir = self.boots[(i + 1) % self.boots.len()];
        lapse(&self.store, lost).await;
        let beat = self.store.heartbeat(heir, 60_000).await.unwrap();
        let (mut freed, mut set_aside) = (0, 0);
        for chunk in self.model.values_mut().filter(|c| c.state == State::Owned(lost)) {
            chunk.take_over();
            if chunk.state == State::Open { freed += 1 } else { set_aside += 1 }
        }
        assert_eq!((beat.freed_chunks, beat.set_aside), (freed, set_aside));
        // The same process wakes up again and goes on.
        self.store.heartbeat(lost, 60_000).await.unwrap();
        "lose an instance"
    }

    fn tally(&self) -> Tally {
        let mut outcomes = Vec::new();
        for chunk in self.model.values() {
            outcomes.push((Outcome::Delivered, chunk.ok.len() as u64));
            let failed = chunk.done.difference(&chunk.ok).map(|i| (chunk.failed[i], 1));
            outcomes.extend(failed);
            if let Some(rest) = chunk.rest {
                outcomes.push((rest, (chunk.n - chunk.done.len()) as u64));
            }
        }
        Tally::new(SIZES.iter().sum::<usize>() as u64, outcomes).unwrap()
    }

    /// Whoever ever held a chunk delivers all of it, set aside or not; then the fan-out settles.
    async fn finish(&mut self, seed: u64) {
        let never_claimed = claim(&self.store, self.boots[0], 10).await;
        let held = self.holds.drain(..).map(|(_, hold)| hold);
        for hold in held.chain(never_claimed.iter().map(Hold::from)).collect::<Vec<_>>() {
            let all: Vec<(usize, Outcome)> = (0..hold.keys.len()).map(|i| (i, Outcome::Delivered)).collect();
            self.store.flush(outcomes(&hold, &all)).await.unwrap();
        }
        let reply = self.store.settle(self.fanout).await.unwrap();
        let SettleReply::Settled(settled) = reply else { panic!("seed {seed}: {reply:?}") };
        assert_eq!(settled.view.tally.delivered(), SIZES.iter().sum::<usize>() as u64, "seed {seed}");
    }
}

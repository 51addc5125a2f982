//! Owns what must hold when a story is over, told by the provider's log and by the rows, each against the other.
//! Must never know: what was done to the fleet, beyond how often.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::FromRow;

use super::fleet::{Fleet, Posted};
use super::scale;

/// Slots, lent slots and what may be unflushed, by default: what one kill can repeat. A stop longer than the lease too: others
/// take over what was in flight, and what was answered and not yet on disk, which cannot be told apart from outside.
const EXPOSURE: u64 = 32 + 16 + 16;
/// Longest wait for everything to be settled once the faults are over, for the short form.
const PATIENCE: Duration = Duration::from_secs(170);

/// One recipient as the rows have it.
#[derive(Debug, FromRow)]
struct Recipient {
    fanout_id: i64,
    state: i16,
    token: Option<String>,
    done: bool,
    ok: bool,
    outcome: Option<i16>,
    rest_outcome: Option<i16>,
}

const RECIPIENTS: &str = "
SELECT c.fanout_id, c.state, d.token, get_bit(c.done, k.ord::int - 1) = 1 AS done,
       get_bit(c.ok, k.ord::int - 1) = 1 AS ok, x.outcome, c.rest_outcome
FROM chunk c JOIN chunk_ids i ON i.fanout_id = c.fanout_id AND i.chunk_no = c.chunk_no
CROSS JOIN LATERAL unnest(i.keys) WITH ORDINALITY k(key, ord)
LEFT JOIN device d ON d.device_key = k.key
LEFT JOIN failure x ON x.fanout_id = c.fanout_id AND x.chunk_no = c.chunk_no AND x.ordinal = k.ord - 1";

/// What rows say of one fan-out.
#[derive(Default)]
struct Counted {
    recipients: u64,
    delivered: u64,
    failed: u64,
    lost: Vec<String>,
}

impl Fleet {
    /// Waits until all is settled and its line marked.
    async fn settled(&self) {
        let begun = Instant::now();
        let open = "SELECT count(*) FROM fanout WHERE reported_ms IS NULL";
        loop {
            let left: i64 = sqlx::query_scalar(open).fetch_one(&mut self.database().await).await.unwrap();
            if left == 0 {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE * u32::try_from(scale()).unwrap(),
                "{}: {left} fan-outs are not settled",
                self.plan.name
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits for the end, holds everything against everything, and tells it in one line. `allowed` are leases that may
    /// be lost beside those of the killed and stalled.
    pub async fn holds(&self, allowed: u64) {
        let name = self.plan.name;
        let faults_over = Instant::now();
        self.settled().await;
        let tail = faults_over.elapsed();
        let accepted = self.accepted();
        let rows: Vec<Recipient> = sqlx::query_as(RECIPIENTS).fetch_all(&mut self.database().await).await.unwrap();
        let mut counted: HashMap<i64, Counted> = HashMap::new();
        for row in &rows {
            assert_eq!(row.state, 2, "{name}: a chunk is not closed: {row:?}");
            counted.entry(row.fanout_id).or_default().add(row, &accepted);
        }
        let (mut retried, mut interrupted, mut lost) = (0, 0, 0);
        for posted in self.posted.iter().chain(&self.unfollowed) {
            let mine = counted.remove(&posted.id.parse().unwrap()).unwrap_or_default();
            assert!(mine.lost.is_empty(), "{name}: lost: {:?}", mine.lost);
            lost += mine.lost.len();
            retried += self.tallied(posted, &mine).await;
            interrupted = interrupted.max(self.one_line(posted).await);
        }
        assert!(counted.is_empty(), "{name}: a fan-out nobody posted");
        let done = self.done;
        let unasked = interrupted.saturating_sub(done.kills + done.stalls);
        assert!(unasked <= allowed, "{name}: {unasked} leases were lost that nobody took");
        let duplicates: u64 = accepted.values().map(|n| n - 1).sum();
        let most = accepted.values().max().copied().unwrap_or(0);
        let bound = EXPOSURE * (done.kills + done.stalls + unasked) + retried;
        println!(
            "{:<22} seed {:<3} instances {} recipients {:>6} kills {:>2} stalls {:>2} others {:>3} retried {:>3} unasked {} duplicates {:>4} of {:>5} most {} lost {} wall {:>5.1} s, {:.1} s after the last fault",
            name,
            self.plan.seed,
            self.plan.instances,
            rows.len(),
            done.kills,
            done.stalls,
            done.others,
            retried,
            unasked,
            duplicates,
            bound,
            most,
            lost,
            self.begun.elapsed().as_secs_f64(),
            tail.as_secs_f64()
        );
        assert!(duplicates <= bound, "{name}: {duplicates} duplicates, law 9 allows {bound}");
        let faults = done.kills + done.stalls + unasked + retried.min(1);
        assert!(most <= 1 + faults, "{name}: {most} deliveries to one recipient, with {faults} faults");
    }

    /// How often each device was reached.
    fn accepted(&self) -> HashMap<String, u64> {
        let mut accepted = HashMap::new();
        for entry in self.world.emulator.log() {
            if entry.accepted {
                *accepted.entry(entry.token).or_default() += 1;
            }
        }
        accepted
    }

    /// The tally of one fan-out is what its rows add up to; gives how often it retried.
    async fn tallied(&self, posted: &Posted, mine: &Counted) -> u64 {
        let name = self.plan.name;
        let told = self.instances[0].process.client.fanout(&posted.id, Duration::ZERO).await.unwrap();
        assert_eq!(mine.recipients, posted.recipients as u64, "{name}: all are frozen, each once: {posted:?}");
        assert_eq!(
            (told.recipients, told.delivered, told.failed, told.pending),
            (mine.recipients, mine.delivered, mine.failed, 0),
            "{name}: conservation: {told:?}"
        );
        assert_eq!(told.outcomes.values().sum::<u64>(), told.recipients, "{name}: {told:?}");
        if told.retried > 0 {
            println!("{name}: retried {}, {} attempts had never left", told.retried, told.unsent);
        }
        told.retried
    }

    /// Exactly one line that is not marked as repeated, unless a kill came between settling and writing. Gives how many
    /// leases were lost under it.
    async fn one_line(&self, posted: &Posted) -> u64 {
        let all = self.instances.iter().map(|instance| &instance.process).chain(&self.past);
        let begun = Instant::now();
        loop {
            let mine = |line: &Value| line["fanout_id"].as_str() == Some(&posted.id);
            let lines: Vec<Value> =
                all.clone().flat_map(|process| process.said("fan-out finished")).filter(mine).collect();
            // It is marked before it is read here.
            if lines.is_empty() && begun.elapsed() < Duration::from_secs(10) {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            let first = lines.iter().filter(|line| line["repeated"] == false).count();
            let excused = usize::from(self.done.kills > 0 && lines.iter().any(|line| line["repeated"] == true));
            assert!(first == 1 || first + excused == 1, "{}: lines of {posted:?}: {lines:#?}", self.plan.name);
            return lines[0]["interrupted"].as_u64().unwrap();
        }
    }
}

impl Counted {
    fn add(&mut self, row: &Recipient, accepted: &HashMap<String, u64>) {
        self.recipients += 1;
        let token = row.token.clone().unwrap_or_default();
        let reached = accepted.contains_key(&token);
        match (row.done, row.ok) {
            (_, true) if reached => self.delivered += 1,
            (true, false) if row.outcome.is_some() => self.failed += 1,
            (false, false) if row.rest_outcome.is_some() => self.failed += 1,
            _ => self.lost.push(token),
        }
    }
}

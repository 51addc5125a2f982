//! Owns the limits on what is accepted and not sent yet: fan-outs, recipients, and the time they will take.
//! Must never know: why they are not sent.
//!
//! The numbers lie in the database, all instances add to them, and counting them costs a query: they are read again when
//! they are a quarter of a second old. What this instance accepts meanwhile is added to the fan-outs. When they cannot be
//! read, what is known stands: whether an event can be kept is for its own write to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::measured::Measured;
use super::problem::{Code, Refusal};
use crate::domain::batch::Class;
use crate::domain::bitmap::CHUNK_SIZE;
use crate::store::{Store, Waiting};

const FRESH: Duration = Duration::from_millis(250);
/// Nobody posts, and the numbers are shown all the same: they are read again when they are this old.
const STALE: Duration = Duration::from_secs(5);
/// Longest wait of a request for newer numbers: a table may be locked, and the events table is not.
const PATIENCE: Duration = Duration::from_millis(50);

/// The limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxBacklog {
    /// Accepted fan-outs not yet settled of one class and all more urgent ones.
    pub fanouts: u64,
    /// Recipients waiting of one class and all more urgent ones.
    pub recipients: u64,
    /// Seconds they will take at the pace in force.
    pub seconds: u64,
}

pub(super) struct Backlog {
    most: MaxBacklog,
    known: Arc<Known>,
    /// Locked while they are read.
    read_at: Arc<Mutex<Option<Instant>>>,
}

type ByClass = [AtomicU64; Class::ALL.len()];

struct Known {
    measured: Measured,
    /// Not settled.
    fanouts: ByClass,
    /// Frozen and in nobody's hands.
    recipients: ByClass,
    /// The last try to read them failed.
    unread: AtomicBool,
}

impl Backlog {
    pub(super) fn new(most: MaxBacklog, measured: Measured) -> Self {
        let none = || std::array::from_fn(|_| AtomicU64::new(0));
        let known = Arc::new(Known { measured, fanouts: none(), recipients: none(), unread: AtomicBool::new(false) });
        Self { most, known, read_at: Arc::default() }
    }

    /// Refuses when as many of the most urgent fan-outs wait as may: then no event is taken, and that is known before the
    /// body is read.
    pub(super) async fn admit(&self, store: &Arc<dyn Store>) -> Result<(), Refusal> {
        self.refresh(store, FRESH).await;
        self.admit_one_more(Class::Urgent)
    }

    fn admit_one_more(&self, class: Class) -> Result<(), Refusal> {
        let (waiting, most) = (up_to(class, &self.known.fanouts), self.most.fanouts);
        if waiting < most {
            return Ok(());
        }
        Err(full(format!("{waiting} fan-outs go before it; {most} are kept waiting at most")))
    }

    /// Refuses when too much goes before an event of `class`, at `pace` recipients per second. What is less urgent does
    /// not count: a goal is not refused because of line-ups.
    pub(super) fn admit_class(&self, class: Class, pace: f64) -> Result<(), Refusal> {
        self.admit_one_more(class)?;
        let ahead = self.ahead(class);
        if ahead >= self.most.recipients {
            let most = self.most.recipients;
            return Err(full(format!("{ahead} recipients go before it; {most} are kept waiting at most")));
        }
        let seconds = seconds(ahead, pace);
        if seconds >= self.most.seconds {
            let most = self.most.seconds;
            return Err(full(format!(
                "{seconds} s of sending go before it at the pace in force; {most} s may at most"
            )));
        }
        Ok(())
    }

    /// Recipients in nobody's hands that go before an event of `class`, at most.
    pub(super) fn ahead(&self, class: Class) -> u64 {
        up_to(class, &self.known.recipients)
    }

    /// One fan-out more.
    pub(super) fn accepted(&self, class: Class) {
        for (_, n) in Class::ALL.iter().zip(&self.known.fanouts).filter(|(of, _)| **of == class) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has the numbers read again that nobody asked for lately.
    pub(super) async fn look(&self, store: &Arc<dyn Store>) {
        self.refresh(store, STALE).await;
    }

    /// One request has them read, the others go on with what is known: they must not queue behind a slow database here.
    async fn refresh(&self, store: &Arc<dyn Store>, good_for: Duration) {
        let Ok(mut read_at) = Arc::clone(&self.read_at).try_lock_owned() else { return };
        if read_at.is_some_and(|at| at.elapsed() < good_for) {
            return;
        }
        let (store, known) = (Arc::clone(store), Arc::clone(&self.known));
        let reading = tokio::spawn(async move {
            match store.backlog().await {
                Ok(waiting) => {
                    known.set(&waiting);
                    known.unread.store(false, Ordering::Relaxed);
                }
                // Said when it begins: an outage has this happen four times a second.
                Err(error) if !known.unread.swap(true, Ordering::Relaxed) => {
                    tracing::warn!(target: "fanfare::api", %error, "backlog not read; the last known one stands");
                }
                Err(error) => tracing::debug!(target: "fanfare::api", %error, "backlog not read again"),
            }
            *read_at = Some(Instant::now());
        });
        let _whether_in_time = tokio::time::timeout(PATIENCE, reading).await;
    }
}

impl Known {
    fn set(&self, waiting: &Waiting) {
        let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.measured.fanouts.set(whole(waiting.fanouts()));
        let of =
            |class: &Class, all: &[(Class, u64)]| all.iter().filter(|(of, _)| of == class).map(|(_, n)| n).sum::<u64>();
        for ((class, fanouts), recipients_of) in Class::ALL.iter().zip(&self.fanouts).zip(&self.recipients) {
            fanouts.store(of(class, &waiting.open_fanouts), Ordering::Relaxed);
            let recipients = of(class, &waiting.open_chunks).saturating_mul(CHUNK_SIZE as u64);
            recipients_of.store(recipients, Ordering::Relaxed);
            self.measured.recipients.get_or_create(&[("class", class.as_str())]).set(whole(recipients));
        }
    }
}

/// Of a class and all more urgent ones.
fn up_to(class: Class, all: &ByClass) -> u64 {
    let before = Class::ALL.iter().zip(all).filter(|(other, _)| other.code() <= class.code());
    before.map(|(_, n)| n.load(Ordering::Relaxed)).sum()
}

fn full(detail: String) -> Refusal {
    Refusal::new(Code::BacklogFull, detail)
}

/// Time that many recipients take. Without a pace nothing can be said.
fn seconds(recipients: u64, pace: f64) -> u64 {
    if pace > 0.0 { (recipients as f64 / pace) as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn backlog(urgent: u64, normal: u64, bulk: u64) -> Backlog {
        let most = MaxBacklog { fanouts: 10, recipients: 5_000, seconds: 60 };
        let backlog = Backlog::new(most, Measured::register(&mut Metrics::new()));
        for (known, n) in backlog.known.recipients.iter().zip([urgent, normal, bulk]) {
            known.store(n, Ordering::Relaxed);
        }
        backlog
    }

    #[test]
    fn what_is_less_urgent_keeps_nobody_out() {
        let backlog = backlog(0, 1_000, 4_000);
        assert_eq!(Class::ALL.iter().map(|c| backlog.ahead(*c)).collect::<Vec<_>>(), [0, 1_000, 5_000]);
        assert!(backlog.admit_class(Class::Urgent, 1.0).is_ok());
        assert!(backlog.admit_class(Class::Normal, 17.0).is_ok(), "58 s");
        assert!(backlog.admit_class(Class::Normal, 16.0).is_err(), "62 s");
        assert!(backlog.admit_class(Class::Bulk, 9000.0).is_err(), "too many, however fast");
    }

    #[test]
    fn fan_outs_that_are_less_urgent_keep_nobody_out_either() {
        let backlog = backlog(0, 0, 0);
        (0..10).for_each(|_| backlog.accepted(Class::Bulk));
        assert!(backlog.admit_one_more(Class::Normal).is_ok());
        assert!(backlog.admit_class(Class::Bulk, 1.0).is_err());
        (0..10).for_each(|_| backlog.accepted(Class::Urgent));
        assert!(backlog.admit_one_more(Class::Urgent).is_err(), "nobody is taken any more");
    }

    #[test]
    fn without_a_pace_only_the_number_counts() {
        assert!(backlog(4_999, 0, 0).admit_class(Class::Urgent, 0.0).is_ok());
        assert!(backlog(5_000, 0, 0).admit_class(Class::Urgent, 0.0).is_err());
    }
}

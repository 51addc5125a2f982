//! Owns how late this machine is, measured by a thread that does nothing but sleep: whether a bound was missed by what is
//! tested or by a machine with too much to do is never judged by what is tested.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A machine whose timers were never later than this was quiet: it explains nothing.
pub const QUIET: Duration = Duration::from_millis(10);

/// How late this process's own timers were, and when.
pub struct Lateness {
    seen: Arc<Mutex<Vec<(Instant, Duration)>>>,
    stop: Arc<AtomicBool>,
}

impl Lateness {
    /// From now on.
    pub fn watch() -> Self {
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

    /// The worst between two times. A nap that has not ended yet is not known.
    pub fn worst(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.seen.lock().unwrap();
        let there = seen.iter().filter(|(at, late)| *at >= from && *at - *late <= to);
        there.map(|(_, late)| *late).max().unwrap_or_default()
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
    }
}

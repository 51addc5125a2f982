//! Owns how long work on many devices shows that it goes on: a bar on a terminal, else a line every few seconds.
//! Must never know: what is moved.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Between two lines where there is no terminal.
const EVERY: Duration = Duration::from_secs(5);

/// Progress on stderr. Gone from the terminal when dropped.
pub(super) struct Progress {
    bar: ProgressBar,
    live: bool,
    begun: Instant,
    told: Instant,
}

impl Progress {
    /// Progress through `bytes`; `None` when nobody knows how many.
    pub(super) fn new(bytes: Option<u64>) -> Self {
        let live = std::io::stderr().is_terminal();
        let target = if live { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let shape = match bytes {
            Some(_) => "{wide_bar} {percent:>3} %  {msg}",
            None => "{spinner} {bytes}  {msg}",
        };
        let bar = ProgressBar::with_draw_target(bytes, target);
        if let Ok(style) = ProgressStyle::with_template(shape) {
            bar.set_style(style);
        }
        Self { bar, live, begun: Instant::now(), told: Instant::now() }
    }

    /// Where it stands: bytes of the file, and devices.
    pub(super) fn at(&mut self, bytes: u64, devices: u64) {
        let per_s = devices as f64 / self.begun.elapsed().as_secs_f64().max(0.001);
        let text = format!("{devices} devices, {per_s:.0}/s");
        self.bar.set_position(bytes);
        self.bar.set_message(text.clone());
        if !self.live && self.told.elapsed() >= EVERY {
            self.told = Instant::now();
            let whole = self.bar.length().filter(|whole| *whole > 0);
            let percent = whole.map_or_else(String::new, |whole| format!("{} %, ", bytes * 100 / whole));
            let _ = writeln!(std::io::stderr(), "{percent}{text}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

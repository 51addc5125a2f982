//! Owns what stops a capped fan-out before its end: its budget, a throttle of the project, news that it is paused.
//! Must never know: who resumes it.

use crate::domain::derived::{Pause, PauseReason};
use crate::domain::ids::FanoutId;

use super::dispatch::Dispatcher;
use super::hand::{Ending, HandKey};

impl Dispatcher {
    /// Hands every chunk of a fan-out back, and those that come in hand yet; what is in flight ends as it ends. The store
    /// is told before it gets the chunks, so that nobody claims them again.
    pub(super) fn pause(&mut self, id: FanoutId, reason: PauseReason) {
        let Some(fan) = self.fans.get_mut(&id).filter(|fan| !fan.paused) else { return };
        fan.paused = true;
        self.outbox.pause(Pause { fanout: id, reason, resumed: fan.resumed() }, self.now);
        tracing::warn!(target: "fanfare::fanout", fanout_id = %id, reason = reason.as_str(), attempts = fan.counters.attempts, "fan-out paused");
        self.hand_back(id);
    }

    /// The store says that it is paused: another instance noticed, or all together have spent its budget. What was resumed
    /// since is not meant.
    pub(super) fn heard_of_pause(&mut self, (id, resumed): (FanoutId, i32)) {
        let Some(fan) = self.fans.get_mut(&id).filter(|fan| !fan.paused && fan.resumed() <= resumed) else { return };
        fan.paused = true;
        self.hand_back(id);
    }

    /// The provider throttled the project: what is sent again or tried out waits for somebody to say when.
    pub(super) fn pause_capped(&mut self) {
        let capped: Vec<FanoutId> = self
            .fans
            .iter()
            .filter(|(id, fan)| fan.cap.is_some() && self.hand.holds(**id))
            .map(|(id, _)| *id)
            .collect();
        for id in capped {
            self.pause(id, PauseReason::Throttle);
        }
    }

    pub(super) fn hand_back(&mut self, id: FanoutId) {
        let keys: Vec<HandKey> =
            self.hand.iter().filter(|(key, _)| key.chunk.fanout == id).map(|(key, _)| key).collect();
        for key in keys {
            self.stop(key, Ending::Release);
            self.close_if_over(key);
        }
    }
}

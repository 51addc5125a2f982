//! Owns what a cancel does to the chunks in hand: nothing more is launched, what is in flight keeps its true outcome.
//! Must never know: who cancelled, or how the news came.

use crate::domain::batch::RestOutcome;
use crate::domain::ids::FanoutId;
use crate::domain::outcome::{Cause, Outcome};

use super::dispatch::Dispatcher;
use super::hand::{Ending, HandKey};

/// How everyone ends who had no attempt.
pub(super) const CANCELLED: Ending = Ending::Rest(RestOutcome { outcome: Outcome::Cancelled, cause: Cause::None });

impl Dispatcher {
    /// Ends every chunk of a fan-out in hand, and those that come in hand yet. News of it may come several times. When
    /// it is the first this instance hears of the fan-out, its chunks are still on their way here, or their claim's
    /// answer was lost: what is ours is looked up, and the next heartbeat brings the news again. Heartbeats tell only
    /// of what is owned, so that it ends once nothing is.
    pub(super) fn cancel(&mut self, id: FanoutId) {
        let Some(fan) = self.fans.get_mut(&id) else {
            self.wiring.hands.doubt();
            return;
        };
        if !std::mem::replace(&mut fan.cancelled, true) {
            tracing::info!(target: "fanfare::fanout", fanout_id = %id, "fan-out cancelled; nothing more of it is launched");
        }
        let keys: Vec<HandKey> =
            self.hand.iter().filter(|(key, _)| key.chunk.fanout == id).map(|(key, _)| key).collect();
        for key in keys {
            self.stop(key, CANCELLED);
            self.close_if_over(key);
        }
    }
}

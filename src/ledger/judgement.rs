//! Owns what is said of judged devices and of verdicts that were not carried out: log lines, metrics, the word that
//! readiness gives.
//! Must never know: how it is decided (that is the store's, where the counts are).

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::domain::outcome::Outcome;
use crate::domain::recipient::Platform;
use crate::metrics::{Counter, Family, Metrics};
use crate::store::{Leap, Ruling, Settled, Withheld, many_foreign};

type PlatformLabel = [(&'static str, &'static str); 1];

/// Tells what settling did to devices. Clones share what they tell.
#[derive(Debug, Clone)]
pub struct Judgements {
    judged: Counter,
    withheld: Family<PlatformLabel, Counter>,
    standing: Arc<watch::Sender<BTreeMap<&'static str, Leap>>>,
}

impl Judgements {
    /// Registers the metrics; every platform is there as 0 from the beginning.
    pub fn register(metrics: &mut Metrics) -> Self {
        let withheld = metrics.counters("verdicts_withheld", "Verdicts against devices that were not carried out.");
        for platform in Platform::ALL {
            let _ = withheld.get_or_create(&[("platform", platform.as_str())]);
        }
        let judged = metrics.counter("devices_judged", "Devices tombstoned or suspended.");
        Self { judged, withheld, standing: Arc::default() }
    }

    /// What readiness says: being wary is no reason not to take events.
    #[must_use]
    pub fn standing(&self) -> String {
        let told: Vec<String> = self.standing.borrow().values().map(words).collect();
        if told.is_empty() { "devices are judged".to_owned() } else { told.join("; ") }
    }

    /// Counts and tells of one that was settled here.
    pub fn tell(&self, settled: &Settled) {
        self.judged.inc_by(settled.judged);
        for withheld in &settled.withheld {
            self.withheld.get_or_create(&[("platform", withheld.platform.as_str())]).inc_by(withheld.against);
        }
        self.repeat(settled);
    }

    /// Tells of one whose line is repeated. Whoever settled it has counted it, or died with its counters.
    pub fn repeat(&self, settled: &Settled) {
        settled.withheld.iter().for_each(|withheld| log(settled, withheld));
        let tally = &settled.view.tally;
        if many_foreign(tally) {
            let foreign = tally.count(Outcome::TokenForeign);
            tracing::warn!(target: "fanfare::ledger", fanout_id = %settled.view.id, foreign, delivered = tally.delivered(), "many device tokens belong to another sender: look for an app built with another project's file, or another project's key here");
        }
        self.remember(settled);
    }

    /// A leap stands here at once. For the others, after a restart, and until it goes, what the fleet remembers counts.
    fn remember(&self, settled: &Settled) {
        let fanout = settled.view.id;
        let leapt = settled.withheld.iter().filter(|withheld| withheld.ruling == Ruling::Leap);
        let leapt = leapt.map(|withheld| (withheld.platform.as_str(), Leap { fanout, withheld: *withheld }));
        self.standing.send_modify(|standing| standing.extend(leapt));
    }

    /// Takes over what the fleet remembers.
    pub(super) fn stand(&self, leaps: &[Leap]) {
        let standing = leaps.iter().map(|leap| (leap.withheld.platform.as_str(), *leap));
        self.standing.send_replace(standing.collect());
    }
}

fn words(leap: &Leap) -> String {
    let Leap { fanout, withheld: Withheld { platform, against, answered, allowed_percent, .. } } = leap;
    format!(
        "no {platform} device judged in fan-out {fanout}: {against} of {answered} dead, {allowed_percent} % allowed"
    )
}

fn log(settled: &Settled, withheld: &Withheld) {
    let Withheld { platform, ruling, against, answered, allowed_percent } = *withheld;
    let fanout_id = settled.view.id;
    if ruling == Ruling::Leap {
        tracing::error!(target: "fanfare::ledger", %fanout_id, %platform, against, answered, allowed_percent, "the dead share leapt: no device of this platform was tombstoned or suspended; look for a fault in project or credentials. They are judged by the next fan-out that finds them dead without a leap");
    } else {
        tracing::info!(target: "fanfare::ledger", %fanout_id, %platform, against, answered, "verdicts against devices wait: nobody of this platform was accepted yet, so nothing shows that the provider is well");
    }
}

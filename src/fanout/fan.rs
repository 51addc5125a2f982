//! Owns what this instance remembers of one fan-out: its counters, its variants, recipients under suspicion.
//! Must never know: chunks, or how anything is sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::ceiling::CeilingSnapshot;
use crate::domain::batch::FanoutJob;
use crate::domain::catalogue::{Catalogue, LiveCatalogue};
use crate::domain::recipient::{Locale, Platform, Recipient};
use crate::domain::tally::PartCounters;

use super::hand::Spot;
use super::variant::Variant;

/// Index of a variant in its [`Fan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VariantNo(usize);

/// One fan-out here. It outlives its chunks: counters are absolute for the instance.
#[derive(Debug)]
pub struct Fan {
    /// What is sent.
    pub job: Arc<FanoutJob>,
    /// Absolute counters of this instance.
    pub counters: PartCounters,
    /// Counters changed since they were last handed over.
    pub dirty: bool,
    /// It is cancelled: a chunk that comes in hand yet ends at once.
    pub cancelled: bool,
    /// Refused recipients whose variant has not shown yet whether it is theirs or the message's fault.
    pub suspects: Vec<(Spot, VariantNo)>,
    /// The highest epoch under which each chunk was taken in hand here, by chunk number.
    taken: HashMap<i32, i32>,
    held: Duration,
    waited: Duration,
    /// The texts it began with here: a reload does not change what is being sent.
    texts: Option<Arc<Catalogue>>,
    variants: Vec<Variant>,
    by_device: HashMap<Platform, HashMap<Locale, VariantNo>>,
}

impl Fan {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(job: Arc<FanoutJob>, now_ms: i64) -> Self {
        let counters = PartCounters { first_claim_ms: now_ms, ..PartCounters::default() };
        Self {
            job,
            counters,
            dirty: true,
            cancelled: false,
            suspects: Vec::new(),
            taken: HashMap::new(),
            held: Duration::ZERO,
            waited: Duration::ZERO,
            texts: None,
            variants: Vec::new(),
            by_device: HashMap::new(),
        }
    }

    /// Notes that a chunk is taken in hand under an epoch; `false` when it was before. Who has seen it through, or
    /// still does, must not send it a second time.
    pub fn take(&mut self, chunk_no: i32, epoch: i32) -> bool {
        let known = self.taken.get(&chunk_no).is_some_and(|taken| *taken >= epoch);
        if !known {
            self.taken.insert(chunk_no, epoch);
        }
        !known
    }

    /// The variant a recipient reads, rendered at its first use with the texts in force when the first was.
    pub fn variant_for(&mut self, recipient: &Recipient, live: &LiveCatalogue) -> VariantNo {
        let (platform, wanted) = (recipient.platform, &recipient.locale);
        if let Some(no) = self.by_device.get(&platform).and_then(|m| m.get(wanted)) {
            return *no;
        }
        let catalogue = Arc::clone(self.texts.get_or_insert_with(|| live.now()));
        let locale = Variant::locale(&self.job, &catalogue, wanted);
        let name = Variant::name(&self.job, locale, platform);
        let known = self.variants.iter().position(|v| v.name == name);
        let no = VariantNo(known.unwrap_or_else(|| {
            self.variants.push(Variant::build(&self.job, &catalogue, locale, platform));
            self.variants.len() - 1
        }));
        self.by_device.entry(platform).or_default().insert(wanted.clone(), no);
        no
    }

    /// A variant.
    #[must_use]
    pub fn variant(&self, no: VariantNo) -> &Variant {
        &self.variants[no.0]
    }

    /// A variant.
    pub fn variant_mut(&mut self, no: VariantNo) -> &mut Variant {
        &mut self.variants[no.0]
    }

    /// Takes out the suspects of one variant.
    pub fn take_suspects(&mut self, of: VariantNo) -> Vec<Spot> {
        let (out, kept) = std::mem::take(&mut self.suspects).into_iter().partition(|(_, no)| *no == of);
        self.suspects = kept;
        let out: Vec<(Spot, VariantNo)> = out;
        out.into_iter().map(|(spot, _)| spot).collect()
    }

    /// Counts time during which launchable recipients waited behind a gate.
    pub fn hold(&mut self, d: Duration) {
        self.held += d;
        self.dirty = true;
    }

    /// Counts time during which launchable recipients lacked only a grant.
    pub fn wait(&mut self, d: Duration) {
        self.waited += d;
        self.dirty = true;
    }

    /// The counters as of now, with the ceiling they were made under.
    pub fn counters(&mut self, ceiling: &CeilingSnapshot) -> PartCounters {
        self.dirty = false;
        let c = &mut self.counters;
        c.held_ms = millis(self.held);
        c.grants_waited_ms = millis(self.waited);
        ceiling.mode.as_str().clone_into(&mut c.mode);
        c.rate = ceiling.rate;
        c.pace = if c.pace > 0.0 { c.pace.min(ceiling.pace) } else { ceiling.pace };
        c.clone()
    }
}

/// Whole milliseconds.
#[must_use]
pub fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::domain::batch::Class;
    use crate::domain::catalogue::BUILT_IN;
    use crate::domain::event::Event;
    use crate::domain::ids::{DeviceKey, EventId, FanoutId, MatchId};
    use crate::domain::recipient::Address;
    use serde_json::Value;

    fn job() -> Arc<FanoutJob> {
        let event = Event {
            id: EventId::parse("e").unwrap(),
            kind: "half_time".to_owned(),
            match_id: MatchId::parse("m").unwrap(),
            occurred_ms: 0,
            subjects: vec!["match:m".to_owned()],
            fields: BTreeMap::from(["home", "away", "score"].map(|f| (f.to_owned(), f.to_owned()))),
            data: BTreeMap::new(),
            useful_for_s: 60,
        };
        Arc::new(FanoutJob { id: FanoutId(1), event, class: Class::Normal, accepted_ms: 0, deadline_ms: 60_000 })
    }

    fn title(fan: &mut Fan, locale: &str, live: &LiveCatalogue) -> String {
        let (platform, address) = (Platform::Web, Address::Token("t".to_owned()));
        let locale = Locale::parse(locale).unwrap();
        let recipient = Recipient { key: DeviceKey(1), address, platform, locale, version: 1 };
        let no = fan.variant_for(&recipient, live);
        let body = fan.variant(no).template.as_ref().unwrap().body(&recipient.address, 60_000, 0);
        let sent: Value = serde_json::from_slice(&body).unwrap();
        sent["message"]["notification"]["title"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_fanout_keeps_the_texts_it_began_with_and_the_next_one_has_the_new() {
        let live = LiveCatalogue::new(Catalogue::parse(BUILT_IN).unwrap());
        let mut begun = Fan::new(job(), 0);
        let mut waiting = Fan::new(job(), 0);
        assert_eq!(title(&mut begun, "en", &live), "Half-time: home score away");
        let new = BUILT_IN.replace("Half-time: ", "HT: ").replace("Devre arası: ", "DA: ");
        live.replace(Catalogue::parse(&new).unwrap()).unwrap();
        assert_eq!(title(&mut begun, "en-GB", &live), "Half-time: home score away");
        assert_eq!(title(&mut begun, "tr", &live), "Devre arası: home score away", "not rendered before the change");
        assert_eq!(title(&mut waiting, "tr", &live), "DA: home score away");
    }
}

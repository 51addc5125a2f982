//! Owns what this instance remembers of one fan-out: its counters, its variants, recipients under suspicion.
//! Must never know: chunks, or how anything is sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::ceiling::CeilingSnapshot;
use crate::domain::batch::FanoutJob;
use crate::domain::catalogue::{Catalogue, LiveCatalogue};
use crate::domain::derived::Cap;
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
    /// It is paused: a chunk that comes in hand yet is handed back, unless its deadline is past.
    pub paused: bool,
    /// Most attempts of all instances together.
    pub cap: Option<Cap>,
    /// Attempts that others made, as far as is known.
    elsewhere: u64,
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
        let cap = job.origin.cap;
        Self {
            job,
            counters,
            dirty: true,
            cancelled: false,
            paused: cap.is_some_and(|cap| cap.paused),
            cap,
            elsewhere: cap.map_or(0, |cap| cap.spent),
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

    /// Takes over what a job that was read later says of the cap: that it is paused or was resumed, or what others have
    /// spent since. Whether it is paused and was not before.
    pub fn renew(&mut self, cap: Option<Cap>) -> bool {
        let Some(cap) = cap.filter(|cap| cap.resumed >= self.resumed()) else { return false };
        let before = self.paused;
        let elsewhere = cap.spent.saturating_sub(self.counters.attempts);
        if cap.resumed > self.resumed() {
            self.elsewhere = elsewhere;
            (self.cap, self.paused) = (Some(cap), cap.paused);
        } else {
            self.paused |= cap.paused;
            // What is stored of this instance's own attempts may lag behind: it never lowers what is known.
            self.elsewhere = self.elsewhere.max(elsewhere);
        }
        self.paused && !before
    }

    /// Times it was resumed, as far as is known here.
    #[must_use]
    pub fn resumed(&self) -> i32 {
        self.cap.map_or(0, |cap| cap.resumed)
    }

    /// Whether it has made as many attempts as it may. What others make meanwhile the store adds up.
    #[must_use]
    pub fn spent(&self) -> bool {
        self.cap.is_some_and(|cap| self.counters.attempts + self.elsewhere >= cap.most)
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
    use crate::domain::derived::Origin;
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
            supersedes: None,
        };
        Arc::new(FanoutJob {
            id: FanoutId(1),
            event,
            class: Class::Normal,
            accepted_ms: 0,
            deadline_ms: 60_000,
            origin: Origin::default(),
        })
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
    fn a_budget_is_spent_by_attempting_wherever_and_renewed_by_a_resumption_only() {
        let cap = |most, spent, resumed| Some(Cap { most, spent, resumed, paused: false });
        let mut capped = FanoutJob::clone(&job());
        capped.origin.cap = cap(10, 4, 0);
        let mut fan = Fan::new(Arc::new(capped), 0);
        fan.counters.attempts = 5;
        assert!(!fan.spent());
        fan.counters.attempts = 6;
        assert!(fan.spent());
        fan.paused = true;
        fan.renew(cap(10, 10, 0));
        assert!(fan.paused && fan.spent(), "the same job read again");
        let mut learns = FanoutJob::clone(&job());
        learns.origin.cap = cap(10, 0, 0);
        let mut learns = Fan::new(Arc::new(learns), 0);
        learns.counters.attempts = 3;
        learns.renew(cap(10, 10, 0));
        assert!(learns.spent(), "a fresh claim tells what others made: 7");
        learns.renew(cap(10, 2, 0));
        assert!(learns.spent(), "what is stored lags behind");
        fan.renew(cap(13, 10, 1));
        assert!(!fan.paused && !fan.spent());
        fan.counters.attempts = 9;
        assert!(fan.spent(), "4 elsewhere and 9 here");
        assert!(!Fan::new(job(), 0).spent(), "no cap");
    }

    #[test]
    fn a_message_goes_by_the_key_of_its_chain_unless_that_would_make_it_too_large() {
        let live = LiveCatalogue::new(Catalogue::parse(BUILT_IN).unwrap());
        let tag = |key: Option<&str>, data: usize| {
            let mut job = FanoutJob::clone(&job());
            job.origin.key = key.map(str::to_owned);
            job.event.data.insert("x".to_owned(), "x".repeat(data));
            let recipient = Recipient {
                key: DeviceKey(1),
                address: Address::Token("t".to_owned()),
                platform: Platform::Web,
                locale: Locale::parse("en").unwrap(),
                version: 1,
            };
            let mut fan = Fan::new(Arc::new(job), 0);
            let no = fan.variant_for(&recipient, &live);
            let body = fan.variant(no).template.as_ref()?.body(&recipient.address, 60_000, 0);
            let sent: Value = serde_json::from_slice(&body).unwrap();
            Some(sent["message"]["webpush"]["notification"]["tag"].as_str().unwrap().to_owned())
        };
        assert_eq!(tag(None, 0).as_deref(), Some("m-state"));
        assert_eq!(tag(Some("goal-1"), 0).as_deref(), Some("goal-1"));
        let long = "k".repeat(64);
        let most = (0..4_096).rev().find(|n| tag(None, *n).is_some()).unwrap();
        assert_eq!(tag(Some(&long), most).as_deref(), Some("m-state"), "beside what is there rather than not at all");
        assert_eq!(tag(Some(&long), most - 100).as_deref(), Some(&*long));
    }

    #[test]
    fn a_pause_that_is_stored_holds_for_whoever_hears_of_the_fanout_for_the_first_time() {
        let cap = |resumed, paused| Some(Cap { most: 10, spent: 4, resumed, paused });
        let mut capped = FanoutJob::clone(&job());
        capped.origin.cap = cap(1, true);
        let mut fan = Fan::new(Arc::new(capped), 0);
        assert!(fan.paused);
        assert!(!fan.renew(cap(1, true)) && fan.paused, "no news");
        assert!(!fan.renew(cap(2, false)) && !fan.paused, "resumed");
        assert!(!fan.renew(cap(1, true)) && !fan.paused, "an earlier pause, read before");
        assert!(fan.renew(cap(2, true)) && fan.paused, "news of another pause");
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

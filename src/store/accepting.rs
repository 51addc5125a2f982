//! Owns what becomes of a post that is more than a new event: a repeat, the same news under another id, a correction, an
//! event whose correction came first. Decided here once, for both databases.
//! Must never know: any statement, or which database it is.

use sqlx::FromRow;

use super::{Accepted, NewFanout};
use crate::domain::batch::FanoutKind;
use crate::domain::derived::Source;
use crate::domain::event::CorrectionMode;
use crate::domain::ids::{EventId, FanoutId, IdError, MatchId};

impl NewFanout {
    /// Its [`news_hash`](crate::domain::event::Event::news_hash), of what people are shown.
    #[must_use]
    pub fn news_hash(&self) -> [u8; 32] {
        self.event.news_hash(&self.shown)
    }
}

/// An event id that is known. One with an empty hash was only named by a correction so far, which then is `fanout`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// Of its content.
    pub hash: Vec<u8>,
    /// What it was accepted as, or stands for.
    pub fanout: FanoutId,
    /// The event of that fan-out, its match, its family; `None` when the fan-out is not kept any more.
    pub of: Option<(EventId, MatchId, FanoutId)>,
}

/// What the database says of an event id, and of the fan-out it leads to.
#[derive(Debug, FromRow)]
pub(crate) struct KnownRow {
    content_hash: Vec<u8>,
    fanout_id: i64,
    event_id: Option<String>,
    match_id: Option<String>,
    family: Option<i64>,
}

impl KnownRow {
    /// # Errors
    /// A stored id that is none.
    pub(crate) fn parse(self) -> Result<Known, IdError> {
        let of = match (self.event_id, self.match_id, self.family) {
            (Some(event), Some(of_match), Some(family)) => {
                Some((EventId::parse(&event)?, MatchId::parse(&of_match)?, FanoutId(family)))
            }
            _ => None,
        };
        Ok(Known { hash: self.content_hash, fanout: FanoutId(self.fanout_id), of })
    }
}

impl Known {
    fn named_only(&self) -> bool {
        self.hash.is_empty()
    }

    /// The chain it is one of.
    pub(crate) fn family(&self) -> Option<FanoutId> {
        self.of.as_ref().map(|(_, _, family)| *family)
    }

    fn in_match(&self, ours: &MatchId) -> bool {
        self.of.as_ref().is_none_or(|(_, theirs, _)| theirs == ours)
    }
}

/// The last state of a family: the one fan-out that nothing has superseded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tip {
    /// The fan-out.
    pub id: FanoutId,
    /// The event its message goes by on the phone.
    pub root: EventId,
    /// The collapse key of its message, as far as one was kept.
    pub key: Option<String>,
    /// It is held yet: its freeze has fixed nobody.
    pub unsent: bool,
}

impl Tip {
    /// One as the database has it: fan-out, event, collapse key, whether it is held.
    ///
    /// # Errors
    /// A stored id that is none.
    pub(crate) fn parse((id, root, key, unsent): (i64, String, Option<String>, bool)) -> Result<Self, IdError> {
        Ok(Self { id: FanoutId(id), root: EventId::parse(&root)?, key, unsent })
    }
}

/// What is known that bears on a post.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Facts {
    /// The post's own id.
    pub own: Option<Known>,
    /// The event it supersedes.
    pub target: Option<Known>,
    /// Where the family of each of these stands.
    pub own_tip: Option<Tip>,
    /// The same of the target.
    pub target_tip: Option<Tip>,
    /// The fan-out that tells the same news and is not over.
    pub same_news: Option<(FanoutId, EventId)>,
    /// Where the family stands that told the same news before it was corrected.
    pub corrected_news: Option<(FanoutId, Tip)>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Plan {
    /// Nothing is written.
    Answer(Box<Accepted>),
    /// The id is kept beside the fan-out that tells the same.
    Join(FanoutId, EventId),
    /// A fan-out is written.
    Write(Write),
}

/// A fan-out to be written, and what changes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    /// Why it exists.
    pub kind: FanoutKind,
    /// Where its recipients come from.
    pub source: Source,
    /// What it takes the place of.
    pub parent: Option<FanoutId>,
    /// Its chain; `None` = its own.
    pub family: Option<FanoutId>,
    /// The event its message replaces on the phone; `None` = its own.
    pub root: Option<EventId>,
    /// Its collapse key; `None` = what its type makes of `root`.
    pub key: Option<String>,
    /// It is superseded as it comes, by this one.
    pub superseded_by: Option<FanoutId>,
    /// Its id is there already, named by a correction.
    pub takes_its_place: bool,
    /// The event it names has not come: its id is to be kept for it.
    pub names: Option<EventId>,
    /// Everything of this family stops.
    pub stops: Option<FanoutId>,
    /// This family becomes part of `family`.
    pub joins: Option<FanoutId>,
    /// The same news under another id is the same fan-out from now on.
    pub opens_window: bool,
    /// It corrects something, so its freeze waits for whoever changes their mind again.
    pub held: bool,
}

/// What becomes of `new`.
pub(crate) fn decide(new: &NewFanout, facts: &Facts) -> Plan {
    let event = &new.event;
    if let Some(own) = facts.own.as_ref().filter(|own| !own.named_only()) {
        return Plan::Answer(Box::new(again(new, own)));
    }
    // What was meant for another match does not stop this one.
    let before = facts.own.as_ref().filter(|own| own.in_match(&event.match_id));
    let superseded_by = before.and(facts.own_tip.as_ref()).map(|tip| tip.id);
    let correction = event.supersedes.as_ref();
    let target = facts.target.as_ref().filter(|_| correction.is_some());
    if let Some((_, theirs, _)) = target.filter(|t| !t.in_match(&event.match_id)).and_then(|t| t.of.as_ref()) {
        return Plan::Answer(Box::new(Accepted::OtherMatch(theirs.clone())));
    }
    if correction.is_none()
        && facts.own.is_none()
        && let Some(plan) = the_same_news(facts)
    {
        return plan;
    }
    let (theirs, ours) = (target.and_then(Known::family), before.and_then(Known::family));
    if let Some(sent) =
        before.and(facts.own_tip.as_ref()).filter(|tip| !tip.unsent && theirs.is_some() && theirs != ours)
    {
        return Plan::Answer(Box::new(Accepted::CorrectedBefore(sent.id)));
    }
    let tip = target.and(facts.target_tip.as_ref());
    let root = correction.map(|c| tip.map_or_else(|| c.event_id.clone(), |tip| tip.root.clone()));
    let (kind, source) = match correction.map(|c| c.mode) {
        None => (FanoutKind::Original, Source::Followers),
        Some(CorrectionMode::Retract) => (FanoutKind::Correction, Source::Reached),
        Some(CorrectionMode::Replace) => (FanoutKind::Correction, Source::Audience),
    };
    Plan::Write(Write {
        kind,
        source,
        parent: tip.map(|tip| tip.id),
        family: theirs.or(ours),
        root,
        // Whatever type the correction is of: it takes the place of what is on the phone.
        key: tip.map_or_else(|| Some(new.collapse_key.clone()), |tip| tip.key.clone()),
        superseded_by,
        takes_its_place: facts.own.is_some(),
        names: correction.filter(|_| target.is_none()).map(|c| c.event_id.clone()),
        // Two that name each other: whichever came first stays, and is not stopped by the one it has superseded.
        stops: theirs.filter(|_| theirs != ours),
        joins: ours.filter(|_| theirs.is_some() && theirs != ours),
        opens_window: superseded_by.is_none() && source != Source::Reached,
        held: correction.is_some(),
    })
}

/// News that somebody else told is known. News that was corrected, and whose correction nobody was sent yet, is the last
/// word again: it takes the place of the correction, so that it is all that is sent.
fn the_same_news(facts: &Facts) -> Option<Plan> {
    if let Some((fanout, of)) = &facts.same_news {
        return Some(Plan::Join(*fanout, of.clone()));
    }
    let (family, tip) = facts.corrected_news.as_ref().filter(|(_, tip)| tip.unsent)?;
    Some(Plan::Write(Write {
        kind: FanoutKind::Correction,
        source: Source::Audience,
        parent: Some(tip.id),
        family: Some(*family),
        root: Some(tip.root.clone()),
        key: tip.key.clone(),
        superseded_by: None,
        takes_its_place: false,
        names: None,
        stops: Some(*family),
        joins: None,
        opens_window: true,
        held: true,
    }))
}

fn again(new: &NewFanout, own: &Known) -> Accepted {
    if own.hash != new.content_hash {
        return Accepted::Conflict(own.fanout);
    }
    match &own.of {
        Some((event, ..)) if *event != new.event.id => Accepted::Duplicate { fanout: own.fanout, of: event.clone() },
        _ => Accepted::Repeat(own.fanout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::batch::Class;
    use crate::domain::event::Supersedes;
    use crate::domain::event::tests::goal;

    fn id(raw: &str) -> EventId {
        EventId::parse(raw).unwrap()
    }

    fn post(supersedes: Option<CorrectionMode>) -> NewFanout {
        let mut event = goal();
        event.supersedes = supersedes.map(|mode| Supersedes { event_id: id("evt-0"), mode });
        let (shown, collapse_key) = (Vec::new(), "own".to_owned());
        NewFanout { event, content_hash: [1; 32], collapse_key, shown, class: Class::Urgent, deadline_ms: 9 }
    }

    fn known(hash: &[u8], fanout: i64, family: i64) -> Option<Known> {
        let of = Some((id("evt-0"), MatchId::parse("4711").unwrap(), FanoutId(family)));
        Some(Known { hash: hash.to_vec(), fanout: FanoutId(fanout), of })
    }

    fn tip(fanout: i64) -> Option<Tip> {
        Some(Tip { id: FanoutId(fanout), root: id("evt-first"), key: Some("first".to_owned()), unsent: true })
    }

    fn written(new: &NewFanout, facts: &Facts) -> Write {
        match decide(new, facts) {
            Plan::Write(write) => write,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_known_id_is_a_repeat_a_conflict_or_the_same_news_again() {
        let facts = |hash: &[u8]| Facts { own: known(hash, 5, 5), ..Facts::default() };
        let of = || id("evt-0");
        let again = Accepted::Duplicate { fanout: FanoutId(5), of: of() };
        assert_eq!(decide(&post(None), &facts(&[1; 32])), Plan::Answer(Box::new(again)));
        assert_eq!(decide(&post(None), &facts(&[2; 32])), Plan::Answer(Box::new(Accepted::Conflict(FanoutId(5)))));
        let mut own = facts(&[1; 32]);
        own.own.as_mut().unwrap().of.as_mut().unwrap().0 = id("evt-8841");
        assert_eq!(decide(&post(None), &own), Plan::Answer(Box::new(Accepted::Repeat(FanoutId(5)))));
    }

    #[test]
    fn a_correction_stops_the_family_and_goes_by_the_name_of_its_first_event() {
        let facts = Facts { target: known(&[3; 32], 5, 4), target_tip: tip(6), ..Facts::default() };
        let write = written(&post(Some(CorrectionMode::Retract)), &facts);
        assert_eq!((write.kind, write.source), (FanoutKind::Correction, Source::Reached));
        assert_eq!(
            (write.parent, write.family, write.stops),
            (Some(FanoutId(6)), Some(FanoutId(4)), Some(FanoutId(4)))
        );
        assert_eq!((write.root, write.names, write.opens_window), (Some(id("evt-first")), None, false));
        assert_eq!(write.key.as_deref(), Some("first"), "in the place of the first message");
        let write = written(&post(Some(CorrectionMode::Replace)), &facts);
        assert!(write.source == Source::Audience && write.opens_window && write.superseded_by.is_none());
    }

    #[test]
    fn a_correction_that_comes_first_keeps_the_place_of_its_original() {
        let write = written(&post(Some(CorrectionMode::Replace)), &Facts::default());
        assert_eq!((write.names, write.root), (Some(id("evt-0")), Some(id("evt-0"))));
        assert_eq!(write.key.as_deref(), Some("own"), "nothing is on the phone yet");
        assert_eq!((write.parent, write.family, write.stops), (None, None, None));
        let facts = Facts { own: known(&[], 7, 7), own_tip: tip(8), ..Facts::default() };
        let original = written(&post(None), &facts);
        assert_eq!((original.kind, original.superseded_by), (FanoutKind::Original, Some(FanoutId(8))));
        assert!(original.takes_its_place && !original.opens_window && original.family == Some(FanoutId(7)));
    }

    #[test]
    fn two_that_name_each_other_leave_the_first() {
        let facts = Facts {
            own: known(&[], 7, 7),
            own_tip: tip(7),
            target: known(&[3; 32], 7, 7),
            target_tip: tip(7),
            ..Facts::default()
        };
        let write = written(&post(Some(CorrectionMode::Replace)), &facts);
        assert_eq!((write.superseded_by, write.stops, write.joins), (Some(FanoutId(7)), None, None));
    }

    #[test]
    fn two_chains_that_meet_become_one() {
        let facts = Facts {
            own: known(&[], 7, 7),
            own_tip: tip(9),
            target: known(&[3; 32], 2, 2),
            target_tip: tip(3),
            ..Facts::default()
        };
        let write = written(&post(Some(CorrectionMode::Replace)), &facts);
        assert_eq!((write.superseded_by, write.stops), (Some(FanoutId(9)), Some(FanoutId(2))));
        assert_eq!(
            (write.family, write.joins, write.parent),
            (Some(FanoutId(2)), Some(FanoutId(7)), Some(FanoutId(3)))
        );
    }

    #[test]
    fn a_correction_whose_own_was_sent_to_another_audience_is_refused_and_nothing_of_it_is_kept() {
        let sent = tip(9).map(|tip| Tip { unsent: false, ..tip });
        let facts = Facts {
            own: known(&[], 7, 7),
            own_tip: sent.clone(),
            target: known(&[3; 32], 2, 2),
            target_tip: tip(3),
            ..Facts::default()
        };
        let post_it = post(Some(CorrectionMode::Replace));
        assert_eq!(decide(&post_it, &facts), Plan::Answer(Box::new(Accepted::CorrectedBefore(FanoutId(9)))));
        let alone = Facts { target: None, target_tip: None, ..facts.clone() };
        assert_eq!(written(&post_it, &alone).superseded_by, Some(FanoutId(9)), "nobody has seen what it corrects");
        let original = Facts { own: known(&[], 7, 7), own_tip: sent, ..Facts::default() };
        assert_eq!(written(&post(None), &original).superseded_by, Some(FanoutId(9)));
    }

    #[test]
    fn news_that_was_corrected_takes_the_place_of_a_correction_nobody_was_sent() {
        let facts = Facts { corrected_news: tip(6).map(|tip| (FanoutId(4), tip)), ..Facts::default() };
        let write = written(&post(None), &facts);
        assert_eq!((write.kind, write.source), (FanoutKind::Correction, Source::Audience));
        assert_eq!(
            (write.parent, write.family, write.stops),
            (Some(FanoutId(6)), Some(FanoutId(4)), Some(FanoutId(4)))
        );
        assert_eq!((write.root, write.held, write.opens_window), (Some(id("evt-first")), true, true));
        assert_eq!(write.key.as_deref(), Some("first"));
        let sent = Facts { corrected_news: tip(6).map(|tip| (FanoutId(4), Tip { unsent: false, ..tip })), ..facts };
        let write = written(&post(None), &sent);
        assert_eq!((write.kind, write.stops, write.held), (FanoutKind::Original, None, false));
    }

    #[test]
    fn another_match_is_refused_and_a_name_from_another_match_stops_nobody() {
        let mut new = post(Some(CorrectionMode::Replace));
        new.event.match_id = MatchId::parse("other").unwrap();
        let facts = Facts { target: known(&[3; 32], 2, 2), target_tip: tip(2), ..Facts::default() };
        let theirs = MatchId::parse("4711").unwrap();
        assert_eq!(decide(&new, &facts), Plan::Answer(Box::new(Accepted::OtherMatch(theirs))));
        new.event.supersedes = None;
        let write = written(&new, &Facts { own: known(&[], 7, 7), own_tip: tip(7), ..Facts::default() });
        assert!(write.superseded_by.is_none() && write.takes_its_place && write.family.is_none());
    }

    #[test]
    fn the_same_news_joins_the_fan_out_that_is_not_over_unless_it_corrects() {
        let facts = Facts { same_news: Some((FanoutId(3), id("evt-3"))), ..Facts::default() };
        assert_eq!(decide(&post(None), &facts), Plan::Join(FanoutId(3), id("evt-3")));
        assert!(matches!(decide(&post(Some(CorrectionMode::Replace)), &facts), Plan::Write(_)));
    }
}

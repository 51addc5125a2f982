//! Owns what may be followed, and how a set of follows is read and shown.
//! Must never know: who follows whom.

use std::collections::BTreeMap;

use super::fault;
use crate::domain::catalogue::Catalogue;
use crate::domain::event::FieldError;
use crate::domain::recipient::{Follows, KindMask};
use crate::domain::subject;
use crate::wire::FollowEntry;

/// Most subjects one device may follow.
pub const MAX_FOLLOWS: usize = 1000;

/// A set of follows as a caller wrote it, nothing checked yet.
#[derive(Debug, Clone, Copy)]
pub struct FollowsDraft<'a> {
    /// Followed subjects.
    pub follows: &'a [FollowEntry],
    /// Event types never wanted.
    pub muted: &'a [String],
}

impl FollowsDraft<'_> {
    /// Checks the set. A subject given twice is followed once, for the types of both.
    ///
    /// # Errors
    /// All faults, in the order they were found.
    pub fn parse(self, catalogue: &Catalogue) -> Result<Follows, Vec<FieldError>> {
        if self.follows.len() > MAX_FOLLOWS {
            let problem = format!("at most {MAX_FOLLOWS} subjects, these are {}", self.follows.len());
            return Err(vec![fault("/follows", problem)]);
        }
        let mut faults = Vec::new();
        let mut subjects = BTreeMap::<&str, KindMask>::new();
        for (i, entry) in self.follows.iter().enumerate() {
            match wanted(i, entry, catalogue) {
                Ok(kinds) => {
                    let all = subjects.entry(&entry.subject).or_insert(KindMask::NONE);
                    *all = all.with(kinds);
                }
                Err(found) => faults.push(found),
            }
        }
        let muted = mask("/muted", self.muted, catalogue).map_err(|f| faults.push(f)).unwrap_or_default();
        if !faults.is_empty() {
            return Err(faults);
        }
        let subjects = subjects.into_iter().map(|(subject, kinds)| (subject.to_owned(), kinds)).collect();
        Ok(Follows { subjects, muted })
    }
}

fn wanted(i: usize, entry: &FollowEntry, catalogue: &Catalogue) -> Result<KindMask, FieldError> {
    let at = format!("/follows/{i}");
    subject::check(&entry.subject).map_err(|problem| fault(format!("{at}/subject"), problem.to_string()))?;
    match &entry.types {
        None => Ok(KindMask::ALL),
        Some(types) if types.is_empty() => {
            Err(fault(format!("{at}/types"), "name at least one event type, or leave `types` out for all"))
        }
        Some(types) => mask(&format!("{at}/types"), types, catalogue),
    }
}

fn mask(at: &str, types: &[String], catalogue: &Catalogue) -> Result<KindMask, FieldError> {
    types.iter().enumerate().try_fold(KindMask::NONE, |mask, (i, name)| {
        let kind = catalogue.known(name).map_err(|unknown| fault(format!("{at}/{i}"), unknown.to_string()))?;
        Ok(mask.with(KindMask::only(kind.bit)))
    })
}

/// A set of follows as it is shown: entries, and the names of muted types.
#[must_use]
pub fn show_follows(follows: &Follows, catalogue: &Catalogue) -> (Vec<FollowEntry>, Vec<String>) {
    let names = |mask| catalogue.names(mask).into_iter().map(str::to_owned).collect::<Vec<_>>();
    let entry = |(subject, kinds): &(String, KindMask)| FollowEntry {
        subject: subject.clone(),
        types: (*kinds != KindMask::ALL).then(|| names(*kinds)),
    };
    (follows.subjects.iter().map(entry).collect(), names(follows.muted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::catalogue::BUILT_IN;

    fn catalogue() -> Catalogue {
        Catalogue::parse(BUILT_IN).unwrap()
    }

    fn entry(subject: &str, types: Option<&[&str]>) -> FollowEntry {
        let types = types.map(|names| names.iter().map(|n| (*n).to_owned()).collect());
        FollowEntry { subject: subject.to_owned(), types }
    }

    fn faults(follows: &[FollowEntry], muted: &[&str]) -> Vec<String> {
        let muted: Vec<String> = muted.iter().map(|m| (*m).to_owned()).collect();
        let found = FollowsDraft { follows, muted: &muted }.parse(&catalogue()).unwrap_err();
        found.into_iter().map(|f| f.field).collect()
    }

    #[test]
    fn what_is_read_is_what_is_shown() {
        let given = [entry("match:1", None), entry("team:ars", Some(&["full_time", "goal"]))];
        let follows = FollowsDraft { follows: &given, muted: &["corner".to_owned()] }.parse(&catalogue()).unwrap();
        let (shown, muted) = show_follows(&follows, &catalogue());
        assert_eq!((shown.as_slice(), muted), (&given[..], vec!["corner".to_owned()]));
    }

    #[test]
    fn a_subject_given_twice_is_followed_once_for_both() {
        let given = [entry("team:ars", Some(&["goal"])), entry("team:ars", Some(&["corner"]))];
        let follows = FollowsDraft { follows: &given, muted: &[] }.parse(&catalogue()).unwrap();
        assert_eq!(follows.subjects, [("team:ars".to_owned(), catalogue().mask(["goal", "corner"]).unwrap())]);
    }

    #[test]
    fn bad_subjects_and_types_are_named() {
        for subject in ["", "team", "team:", "club:ars", "team:a\0", "team:\u{202e}x"] {
            assert_eq!(faults(&[entry(subject, None)], &[]), ["/follows/0/subject"], "{subject:?}");
        }
        assert_eq!(
            faults(&[entry("team:ars", Some(&["goal", "gaol"]))], &["cornr"]),
            ["/follows/0/types/1", "/muted/0"]
        );
        assert_eq!(faults(&[entry("team:ars", Some(&[]))], &[]), ["/follows/0/types"]);
        assert_eq!(faults(&vec![entry("team:ars", None); MAX_FOLLOWS + 1], &[]), ["/follows"]);
    }
}

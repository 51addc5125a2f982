//! Owns the catalogue in force, which may be exchanged while the service runs.
//! Must never know: where a new one comes from, or who asked for it.

use std::sync::{Arc, PoisonError, RwLock};

use super::{Catalogue, CatalogueError};

/// The catalogue in force. Whoever works with it takes what is in force now, and keeps that for as long as the work
/// must not change under it: a post, an import, a fan-out.
#[derive(Debug, Clone)]
pub struct LiveCatalogue(Arc<RwLock<Arc<Catalogue>>>);

/// What a replacement changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// Types that were not there before, by name.
    pub added: Vec<String>,
    /// Types that were there and differ in anything, by name.
    pub changed: Vec<String>,
    /// Types there are now.
    pub types: usize,
    /// Texts there are now: one per type and locale.
    pub texts: usize,
}

impl LiveCatalogue {
    /// Puts the first one in force.
    #[must_use]
    pub fn new(catalogue: Catalogue) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(catalogue))))
    }

    /// The one in force.
    #[must_use]
    pub fn now(&self) -> Arc<Catalogue> {
        // What is behind the lock is exchanged whole, so that a panic elsewhere cannot have left half of it.
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another one in force.
    ///
    /// # Errors
    /// Those of [`Catalogue::may_replace`]; then the old one stays.
    pub fn replace(&self, new: Catalogue) -> Result<Changes, CatalogueError> {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        new.may_replace(&current)?;
        let changes = Changes::between(&current, &new);
        *current = Arc::new(new);
        Ok(changes)
    }
}

impl Changes {
    fn between(old: &Catalogue, new: &Catalogue) -> Self {
        let names = |differ: fn(Option<&super::EventType>, &super::EventType) -> bool| {
            let found = new.types.values().filter(|kind| differ(old.get(&kind.name), kind));
            found.map(|kind| kind.name.clone()).collect()
        };
        Self {
            added: names(|before, _| before.is_none()),
            changed: names(|before, now| before.is_some_and(|before| before != now)),
            types: new.types.len(),
            texts: new.types.values().map(|kind| kind.texts.len()).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::BUILT_IN;
    use super::*;

    fn catalogue(from: &str, to: &str) -> Catalogue {
        assert!(BUILT_IN.contains(from), "{from}");
        Catalogue::parse(&BUILT_IN.replacen(from, to, 1)).unwrap()
    }

    #[test]
    fn a_replacement_is_seen_by_all_and_what_was_taken_before_stays() {
        let live = LiveCatalogue::new(catalogue("", ""));
        let (elsewhere, before) = (live.clone(), live.now());
        let changes = live.replace(catalogue("GOAL! ", "Goal: ")).unwrap();
        let nothing: Vec<String> = Vec::new();
        assert_eq!((changes.added, changes.changed), (nothing.clone(), vec!["goal".to_owned()]));
        assert_eq!((changes.types, changes.texts), (21, 105));
        assert_ne!(elsewhere.now(), before);
        assert_eq!(*before, catalogue("", ""));
        let added = live.replace(catalogue("[types.corner]", &format!("{}[types.corner]", offside()))).unwrap();
        assert_eq!((added.added, added.changed), (vec!["offside".to_owned()], vec!["goal".to_owned()]));
        assert_eq!(live.replace(Catalogue::clone(&live.now())).unwrap().changed, nothing);
    }

    fn offside() -> String {
        let corner = BUILT_IN.split("[types.corner]").nth(1).unwrap().split("[types.").next().unwrap();
        format!("[types.offside]{}", corner.replace("bit = 14", "bit = 21"))
    }

    #[test]
    fn a_replacement_that_would_change_what_is_stored_leaves_the_old_one_in_force() {
        let live = LiveCatalogue::new(catalogue("", ""));
        let before = live.now();
        let both = BUILT_IN.replacen("types.goal]", "types.tor]", 1).replacen("bit = 14", "bit = 30", 1);
        let error = live.replace(Catalogue::parse(&both).unwrap()).unwrap_err();
        assert_eq!(error.0.len(), 2, "{error}");
        assert!(Arc::ptr_eq(&live.now(), &before));
    }
}

//! Owns what both databases decide alike about a batch of an import: which rows are taken, what each means for the
//! devices that are there, and how one is refused.
//! Must never know: SQL, or the format of the input.

use std::collections::{HashMap, HashSet};

use super::{ImportReject, ImportRow, Imported, StoreError};
use crate::domain::recipient::{Address, DeviceState, Follows, KindMask};

/// Rows of one batch: one transaction must not hold locks, or the writer, for long.
const MAX_ROWS: usize = 2_000;

/// What is stored of a device that has an id or an address of the batch.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) key: i64,
    pub(crate) id: String,
    /// `None` when it does not parse: it is nobody's rival then, and may be written over.
    pub(crate) address: Option<Address>,
    /// `None` when this build does not know it.
    pub(crate) state: Option<DeviceState>,
    pub(crate) user: String,
    pub(crate) platform: i64,
    pub(crate) locale: String,
    pub(crate) muted: KindMask,
    /// By subject, the types wanted and those of them that count; `None` when it was not read.
    pub(crate) follows: Option<HashMap<String, (KindMask, KindMask)>>,
}

impl Held {
    /// The row says of the device itself what is there, and its state stays.
    fn is(&self, row: &ImportRow, state: DeviceState) -> bool {
        let device = &row.device;
        self.state == Some(state)
            && self.address.as_ref() == Some(&device.address)
            && self.user == device.user.as_str()
            && self.platform == i64::from(device.platform.code())
            && self.locale == device.locale.as_str()
    }

    fn has(&self, said: &Follows, state: DeviceState) -> bool {
        let stands = |follows: &HashMap<String, (KindMask, KindMask)>| {
            let as_said =
                |(subject, mask): &(String, KindMask)| follows.get(subject) == Some(&(*mask, said.kinds(*mask, state)));
            follows.len() == said.subjects.len() && said.subjects.iter().all(as_said)
        };
        self.muted == said.muted && self.follows.as_ref().is_some_and(stands)
    }
}

/// Most follows of held devices that need be read to tell whether a batch says anything new of them: its own and, for
/// those that have more, a bound on memory. With more than that, all follows of the batch are written.
pub(crate) fn most_follows(rows: &[ImportRow]) -> i64 {
    let said: usize = rows.iter().filter_map(|row| row.follows.as_ref()).map(|follows| follows.subjects.len()).sum();
    i64::try_from(said + 10 * MAX_ROWS).unwrap_or(i64::MAX)
}

/// Puts the follows of held devices in their places. More rows than [`most_follows`] were not all read.
pub(crate) fn attach(held: &mut [Held], follows: Vec<(i64, String, i64, i64)>, most: i64) {
    if i64::try_from(follows.len()).is_ok_and(|n| n <= most) {
        let places: HashMap<i64, usize> = held.iter().enumerate().map(|(at, held)| (held.key, at)).collect();
        held.iter_mut().for_each(|held| held.follows = Some(HashMap::new()));
        for (key, subject, wanted, kinds) in follows {
            if let Some(theirs) = places.get(&key).and_then(|at| held[*at].follows.as_mut()) {
                theirs.insert(subject, (KindMask(wanted), KindMask(kinds)));
            }
        }
    }
}

/// A row that is kept.
#[derive(Debug, Clone)]
pub(crate) struct Taken<'a> {
    pub(crate) row: &'a ImportRow,
    /// What is there of its device.
    pub(crate) held: Option<&'a Held>,
    /// The state it has afterwards.
    pub(crate) state: DeviceState,
    /// What it follows afterwards, unless that is what it follows already.
    pub(crate) follows: Option<&'a Follows>,
}

impl Taken<'_> {
    /// It says what is there already. Then nothing is written, its times stay as well: whoever imports the same file
    /// each night can still be told what happened to a device on the evening before.
    pub(crate) fn is_there(&self) -> bool {
        self.follows.is_none() && self.held.is_some_and(|held| held.is(self.row, self.state))
    }

    /// The device is there and has another address: it must let go of that one before any is written, for two devices
    /// may change places.
    pub(crate) fn lets_go(&self) -> Option<i64> {
        self.held.filter(|held| held.address.as_ref() != Some(&self.row.device.address)).map(|held| held.key)
    }

    /// The device was dead and will be live.
    pub(crate) fn revives(&self) -> bool {
        self.state == DeviceState::Live && self.held.is_some_and(|held| held.state != Some(DeviceState::Live))
    }
}

/// What is to be done with a batch.
#[derive(Debug, Clone)]
pub(crate) struct Decision<'a> {
    pub(crate) taken: Vec<Taken<'a>>,
    /// Devices outside the batch whose address goes to a device of the batch: they are gone then.
    pub(crate) rivals: Vec<i64>,
    /// The answer, once it is written.
    pub(crate) answer: Imported,
}

/// Decides about a batch, by what is stored.
///
/// # Errors
/// [`StoreError::Statement`] when the batch is too large or names an id or an address twice.
pub(crate) fn decide<'a>(rows: &'a [ImportRow], held: &'a [Held], revive: bool) -> Result<Decision<'a>, StoreError> {
    check(rows)?;
    let by_id: HashMap<&str, &Held> = held.iter().map(|held| (held.id.as_str(), held)).collect();
    let owners: HashMap<&Address, &Held> =
        held.iter().filter_map(|held| Some((held.address.as_ref()?, held))).collect();
    let mut decision =
        Decision { taken: Vec::with_capacity(rows.len()), rivals: Vec::new(), answer: Imported::default() };
    for row in rows {
        let held = by_id.get(row.id().as_str()).copied();
        let other = owners.get(&row.device.address).filter(|owner| owner.id != row.id().as_str());
        match state_after(row, held, other.is_some(), revive) {
            Ok(state) => {
                let news = |said: &&Follows| !held.is_some_and(|held| held.has(said, state));
                decision.taken.push(Taken { row, held, state, follows: row.follows.as_ref().filter(news) });
            }
            Err((code, reason)) => decision.answer.rejected.push(ImportReject { line: row.line, code, reason }),
        }
    }
    decision.count(&owners);
    Ok(decision)
}

impl<'a> Decision<'a> {
    /// The rows that make a device.
    pub(crate) fn new_ones(&self) -> Vec<&Taken<'a>> {
        self.taken.iter().filter(|taken| taken.held.is_none()).collect()
    }

    /// The rows that change a device.
    pub(crate) fn changed(&self) -> Vec<&Taken<'a>> {
        self.taken.iter().filter(|taken| taken.held.is_some() && !taken.is_there()).collect()
    }

    /// Devices that are there and will be written or removed.
    pub(crate) fn touched(&self) -> Vec<i64> {
        let changed = self.changed();
        changed.iter().filter_map(|taken| taken.held).map(|held| held.key).chain(self.rivals.iter().copied()).collect()
    }

    fn count(&mut self, owners: &HashMap<&Address, &Held>) {
        let lines: HashMap<&str, u64> =
            self.taken.iter().map(|taken| (taken.row.id().as_str(), taken.row.line)).collect();
        for taken in &self.taken {
            *(if taken.held.is_some() { &mut self.answer.updated } else { &mut self.answer.imported }) += 1;
            self.answer.revived += u64::from(taken.revives());
            if taken.held.is_some() && taken.lets_go().is_none() {
                continue;
            }
            let own = taken.row.id().as_str();
            let Some(owner) = owners.get(&taken.row.device.address).filter(|owner| owner.id != own) else { continue };
            match lines.get(owner.id.as_str()) {
                // An earlier line gave the owner another address: this one was free by then.
                Some(line) if *line < taken.row.line => {}
                Some(_) => self.answer.moved += 1,
                None => {
                    self.answer.moved += 1;
                    self.rivals.push(owner.key);
                }
            }
        }
    }
}

/// The state a row's device has once it is written, or why it is not. Whoever revives wants every device of the file to
/// live, and an export says of each what it was.
fn state_after(
    row: &ImportRow,
    held: Option<&Held>,
    taken_by_other: bool,
    revive: bool,
) -> Result<DeviceState, (&'static str, String)> {
    let said = row.state.filter(|_| !revive).unwrap_or(DeviceState::Live);
    let id = row.id();
    if said != DeviceState::Live && taken_by_other {
        return Err(("live_here", format!("device {id} is {said} in the file, but another device has its token here")));
    }
    let Some(held) = held else { return Ok(said) };
    match held.state {
        None => Err(("unreadable", format!("device {id} is in a state this version does not know: register it again"))),
        Some(DeviceState::Live) if said != DeviceState::Live => {
            Err(("live_here", format!("device {id} is {said} in the file, but live here: it has registered since")))
        }
        Some(DeviceState::Live) => Ok(DeviceState::Live),
        Some(dead) if said != DeviceState::Live => Ok(dead),
        Some(_) if revive => Ok(DeviceState::Live),
        Some(dead) => {
            let wakes = "its app wakes it by registering again; an import does so only when asked to `revive`";
            Err((dead.as_str(), format!("device {id} is {dead}: {wakes}")))
        }
    }
}

/// Whether a batch is one at all; [`decide`] looks too.
///
/// # Errors
/// As those of [`decide`].
pub(crate) fn check(rows: &[ImportRow]) -> Result<(), StoreError> {
    let refuse = |what: &str| Err(StoreError::Statement(format!("import: {what}")));
    if rows.len() > MAX_ROWS {
        return refuse("too many rows in a batch");
    }
    let ids: HashSet<_> = rows.iter().map(ImportRow::id).collect();
    let addresses: HashSet<_> = rows.iter().map(|row| &row.device.address).collect();
    if ids.len() < rows.len() || addresses.len() < rows.len() {
        return refuse("an id or an address twice in a batch");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::{DeviceId, UserId};
    use crate::domain::recipient::DeviceState::{Live, Suspended, Tombstoned};
    use crate::domain::recipient::{Device, Locale, Platform};

    fn row(line: u64, id: &str, token: &str) -> ImportRow {
        let device = Device {
            id: DeviceId::parse(id).unwrap(),
            user: UserId::parse("u").unwrap(),
            address: Address::Token(token.to_owned()),
            platform: Platform::Android,
            locale: Locale::default(),
        };
        ImportRow { line, device, follows: None, state: None }
    }

    fn held(key: i64, id: &str, token: &str, state: Option<DeviceState>) -> Held {
        let address = Some(Address::Token(token.to_owned()));
        let (user, locale) = ("u".to_owned(), Locale::default().as_str().to_owned());
        let (platform, muted) = (i64::from(Platform::Android.code()), KindMask::NONE);
        Held { key, id: id.to_owned(), address, state, user, platform, locale, muted, follows: None }
    }

    fn dead(row: ImportRow) -> ImportRow {
        ImportRow { state: Some(Suspended), ..row }
    }

    #[test]
    fn a_batch_that_is_too_large_or_repeats_itself_is_refused() {
        let many: Vec<ImportRow> = (0..=MAX_ROWS).map(|i| row(1, &format!("d{i}"), &format!("t{i}"))).collect();
        assert!(matches!(decide(&many, &[], false), Err(StoreError::Statement(_))));
        assert!(decide(&many[1..], &[], false).is_ok());
        for twice in [[row(1, "a", "t"), row(2, "a", "u")], [row(1, "a", "t"), row(2, "b", "t")]] {
            assert!(matches!(decide(&twice, &[], false), Err(StoreError::Statement(_))));
        }
    }

    #[test]
    fn what_is_dead_stays_dead_unless_asked_for_and_what_lives_stays_alive() {
        let stored = [
            held(1, "live", "t1", Some(Live)),
            held(2, "gone", "t2", Some(Tombstoned)),
            held(3, "odd", "t3", None),
            held(4, "owner", "t4", Some(Live)),
        ];
        for (row, revive, expected) in [
            (row(1, "live", "t1"), false, Ok(Live)),
            (dead(row(1, "live", "t1")), false, Err("live_here")),
            (dead(row(1, "live", "t1")), true, Ok(Live)),
            (row(1, "gone", "t2"), false, Err("tombstoned")),
            (row(1, "gone", "t2"), true, Ok(Live)),
            (dead(row(1, "gone", "t2")), false, Ok(Tombstoned)),
            (dead(row(1, "gone", "t2")), true, Ok(Live)),
            (row(1, "odd", "t3"), true, Err("unreadable")),
            (dead(row(1, "new", "t9")), false, Ok(Suspended)),
            (dead(row(1, "new", "t9")), true, Ok(Live)),
            (dead(row(1, "new", "t4")), false, Err("live_here")),
            (row(1, "new", "t9"), false, Ok(Live)),
        ] {
            let rows = [row];
            let decided = decide(&rows, &stored, revive).unwrap();
            let state = decided.taken.first().map(|taken| taken.state).ok_or_else(|| decided.answer.rejected[0].code);
            assert_eq!(state, expected, "{rows:?}");
            let revived = expected == Ok(Live) && rows[0].id().as_str() == "gone";
            assert_eq!(decided.answer.revived, u64::from(revived));
        }
    }

    #[test]
    fn a_token_moves_from_whoever_has_it_by_then() {
        let stored =
            [held(1, "a", "ta", Some(Live)), held(2, "b", "tb", Some(Live)), held(3, "out", "to", Some(Tombstoned))];
        // a and b change places: b still had its token when a took it, a had given up its own before b took it.
        let rows = [row(1, "a", "tb"), row(2, "b", "ta"), row(3, "new", "to")];
        let decided = decide(&rows, &stored, false).unwrap();
        assert_eq!((decided.answer.imported, decided.answer.updated, decided.answer.moved), (1, 2, 2));
        assert_eq!(decided.rivals, [3]);
        assert_eq!(decided.taken.iter().filter_map(Taken::lets_go).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((decided.new_ones().len(), decided.changed().len(), decided.touched()), (1, 2, vec![1, 2, 3]));
        // A rejected line does not give its device another address.
        let rows = [row(1, "out", "tx"), row(2, "new", "to")];
        let decided = decide(&rows, &stored, false).unwrap();
        assert_eq!((decided.answer.moved, decided.rivals), (1, vec![3]));
    }

    #[test]
    fn a_row_that_says_what_is_there_writes_nothing() {
        let subject = |name: &str| (name.to_owned(), KindMask::ALL);
        let said = |subjects: Vec<(String, KindMask)>| Some(Follows { subjects, muted: KindMask::only(1) });
        let mut stored = [held(1, "a", "t", Some(Live))];
        stored[0].muted = KindMask::only(1);
        let kinds = KindMask::ALL.without(KindMask::only(1));
        attach(&mut stored, vec![(1, "team:x".to_owned(), KindMask::ALL.0, kinds.0)], 1);
        let there = |change: &dyn Fn(&mut ImportRow)| {
            let mut rows = [ImportRow { follows: said(vec![subject("team:x")]), ..row(1, "a", "t") }];
            change(&mut rows[0]);
            let decided = decide(&rows, &stored, true).unwrap();
            assert_eq!((decided.answer.updated, decided.new_ones().len()), (1, 0));
            (decided.touched().is_empty(), decided.taken[0].follows.is_none())
        };
        assert_eq!(there(&|_| ()), (true, true));
        assert_eq!(there(&|row| row.follows = None), (true, true));
        assert_eq!(there(&|row| row.device.user = UserId::parse("v").unwrap()), (false, true));
        assert_eq!(there(&|row| row.device.platform = Platform::Ios), (false, true));
        assert_eq!(there(&|row| row.device.locale = Locale::parse("tr").unwrap()), (false, true));
        assert_eq!(there(&|row| row.device.address = Address::Fid("t".to_owned())), (false, true));
        for other in [vec![], vec![subject("team:y")], vec![subject("team:x"), subject("team:y")]] {
            assert_eq!(there(&|row| row.follows = said(other.clone())), (false, false), "{other:?}");
        }
        let unmuted = Follows { subjects: vec![subject("team:x")], muted: KindMask::NONE };
        assert_eq!(there(&|row| row.follows = Some(unmuted.clone())), (false, false));
    }

    #[test]
    fn follows_that_were_not_all_read_count_as_other_ones() {
        let mut stored = [held(1, "a", "t", Some(Live))];
        attach(&mut stored, vec![(1, "team:x".to_owned(), 1, 1), (1, "team:y".to_owned(), 1, 1)], 1);
        let rows = [ImportRow { follows: Some(Follows::default()), ..row(1, "a", "t") }];
        assert_eq!(decide(&rows, &stored, false).unwrap().touched(), [1]);
        stored[0].state = Some(Tombstoned);
        attach(&mut stored, vec![], 1);
        assert_eq!(decide(&rows, &stored, true).unwrap().touched(), [1], "it lives again");
    }
}

//! Importing: the answers of single registrations, for a batch at once.

use fanfare::domain::batch::Class;
use fanfare::domain::ids::{DeviceKey, FanoutId};
use fanfare::domain::outcome::Outcome::{TokenDead, TokenInvalid};
use fanfare::domain::recipient::{Address, DeviceState, Follows, KindMask, Locale};
use fanfare::store::{DevicePage, ImportRow, StoreError};

use super::world::*;

fn row(line: u64, id: &str, token: &str, follows: Option<Follows>) -> ImportRow {
    ImportRow { line, device: device(id, token), follows, state: None }
}

async fn token_of(store: &Shared, id: &str) -> Option<String> {
    let view = store.device(device_id(id)).await.unwrap()?;
    Some(view.device.address.value().to_owned())
}

pub async fn an_import_creates_updates_and_follows(store: Shared) {
    store.put_device(device("old", "t-old")).await.unwrap();
    let muted = Follows { muted: KindMask::only(5), ..following("team:ars", KindMask::ALL) };
    let mut fid = row(3, "fid", "", None);
    fid.device.address = Address::Fid("f".to_owned());
    let rows =
        vec![row(1, "old", "t-new", Some(muted.clone())), row(2, "new", "t", Some(following("team:ars", GOAL))), fid];
    let done = store.import(rows.clone(), false).await.unwrap();
    assert_eq!((done.imported, done.updated, done.rejected.len()), (2, 1, 0));
    let old = store.device(device_id("old")).await.unwrap().unwrap();
    assert_eq!((old.follows, old.version), (muted, 2));
    assert_eq!(page(&store, "team:ars", KindMask::only(5)).await, []);
    assert_eq!(page(&store, "team:ars", GOAL).await.len(), 2);
    let again = store.import(rows, false).await.unwrap();
    assert_eq!((again.imported, again.updated), (0, 3));
    assert_eq!(store.device(device_id("old")).await.unwrap().unwrap().version, 2, "nothing changed");
    assert_eq!(store.import(vec![], false).await.unwrap(), Default::default());
}

pub async fn a_batch_that_names_a_device_or_a_token_twice_is_a_fault_of_ours(store: Shared) {
    for twice in [[row(1, "a", "t1", None), row(2, "a", "t2", None)], [row(1, "a", "t", None), row(2, "b", "t", None)]]
    {
        assert!(matches!(store.import(twice.to_vec(), false).await, Err(StoreError::Statement(_))));
    }
    assert_eq!(token_of(&store, "a").await, None);
}

pub async fn an_import_revives_nobody_unless_it_is_asked_to(store: Shared) {
    let boot = instance(&store).await;
    healthy(&store, boot, "well", 1).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 2).await;
    store.flush(outcomes(&Hold::from(&chunk), &[(0, TokenDead), (1, TokenInvalid)])).await.unwrap();
    store.settle(id).await.unwrap();
    let follows = Some(following("match:evt", KindMask::ALL));
    let rows = vec![
        row(7, "evt-0", "token-evt-0", follows.clone()),
        row(8, "evt-1", "another", follows.clone()),
        row(9, "fine", "t", follows),
    ];
    let done = store.import(rows.clone(), false).await.unwrap();
    assert_eq!((done.imported, done.updated, done.revived), (1, 0, 0));
    let rejects: Vec<_> = done.rejected.iter().map(|r| (r.line, r.code)).collect();
    assert_eq!(rejects, [(7, "tombstoned"), (8, "suspended")]);
    assert_eq!(store.device(device_id("evt-0")).await.unwrap().unwrap().state, DeviceState::Tombstoned);
    assert_eq!(token_of(&store, "evt-1").await.as_deref(), Some("token-evt-1"));
    assert_eq!(page(&store, "match:evt", GOAL).await.len(), 1);

    // The second time one of them does not say what it follows: its follows wake with it.
    let mut rows = rows;
    rows[1].follows = None;
    let done = store.import(rows, true).await.unwrap();
    assert_eq!((done.imported, done.updated, done.revived, done.rejected), (0, 3, 2, vec![]));
    assert_eq!(page(&store, "match:evt", GOAL).await.len(), 3);
    let view = store.device(device_id("evt-1")).await.unwrap().unwrap();
    assert_eq!((view.state, view.version, view.device.address.value()), (DeviceState::Live, 3, "another"));
}

pub async fn a_row_that_says_its_device_is_dead_makes_no_live_one_dead(store: Shared) {
    store.put_device(device("live", "t")).await.unwrap();
    let dead = |line, id, token, state| ImportRow {
        state: Some(state),
        ..row(line, id, token, Some(following("team:ars", KindMask::ALL)))
    };
    let rows = vec![dead(1, "live", "t", DeviceState::Tombstoned), dead(3, "old", "u", DeviceState::Tombstoned)];
    let thief = store.import(vec![dead(2, "thief", "t", DeviceState::Suspended)], false).await.unwrap();
    assert_eq!((thief.imported, thief.rejected[0].code), (0, "live_here"));
    for (imported, updated) in [(1, 0), (0, 1)] {
        let done = store.import(rows.clone(), false).await.unwrap();
        assert_eq!((done.imported, done.updated, done.revived, done.moved), (imported, updated, 0, 0));
        assert_eq!(done.rejected.iter().map(|r| (r.line, r.code)).collect::<Vec<_>>(), [(1, "live_here")]);
    }
    assert_eq!(store.device(device_id("live")).await.unwrap().unwrap().state, DeviceState::Live);
    let old = store.device(device_id("old")).await.unwrap().unwrap();
    assert_eq!((old.state, old.version), (DeviceState::Tombstoned, 1));
    assert_eq!(page(&store, "team:ars", GOAL).await, [], "dead devices follow nothing that is sent");
    store.put_device(device("old", "u")).await.unwrap();
    assert_eq!(page(&store, "team:ars", GOAL).await, [old.key], "registered, it follows what the file said");
}

pub async fn a_row_that_says_its_device_is_dead_lives_when_it_is_asked_to(store: Shared) {
    let dead =
        |line, id, token, follows| ImportRow { state: Some(DeviceState::Tombstoned), ..row(line, id, token, follows) };
    let follows = Some(following("team:ars", KindMask::ALL));
    let rows = vec![dead(1, "a", "ta", follows.clone()), dead(2, "b", "tb", follows.clone())];
    assert_eq!(store.import(rows, false).await.unwrap().imported, 2);
    store.put_device(device("live", "t")).await.unwrap();
    // What was exported: one that says what it follows, one that does not, one that lives here, one that is new.
    let rows = vec![
        dead(1, "a", "ta", follows.clone()),
        dead(2, "b", "tb", None),
        dead(3, "live", "t", follows.clone()),
        dead(4, "new", "tn", follows),
    ];
    let done = store.import(rows, true).await.unwrap();
    assert_eq!((done.imported, done.updated, done.revived, done.rejected), (1, 3, 2, vec![]));
    assert_eq!(page(&store, "team:ars", GOAL).await.len(), 4);
    for id in ["a", "b", "live", "new"] {
        assert_eq!(store.device(device_id(id)).await.unwrap().unwrap().state, DeviceState::Live, "{id}");
    }
}

pub async fn an_import_moves_and_swaps_tokens(store: Shared) {
    let first = [("a", "ta"), ("b", "tb"), ("c", "tc"), ("d", "td")];
    let rows = first.iter().map(|(id, token)| row(1, id, token, Some(following("team:ars", GOAL)))).collect();
    store.import(rows, false).await.unwrap();
    // a and b change places, the newcomer takes c's token, and d stays as it is.
    let rows =
        vec![row(1, "a", "tb", None), row(2, "b", "ta", None), row(3, "new", "tc", None), row(4, "d", "td", None)];
    let done = store.import(rows, false).await.unwrap();
    assert_eq!((done.imported, done.updated, done.moved), (1, 3, 2), "b still had its token, c had its own");
    for (id, token) in [("a", Some("tb")), ("b", Some("ta")), ("c", None), ("new", Some("tc")), ("d", Some("td"))] {
        assert_eq!(token_of(&store, id).await.as_deref(), token, "{id}");
    }
    let version = async |id| store.device(device_id(id)).await.unwrap().unwrap().version;
    assert_eq!((version("a").await, version("b").await, version("d").await), (2, 2, 1));
    assert_eq!(page(&store, "team:ars", GOAL).await.len(), 3, "c is gone with its follows");
}

pub async fn a_line_without_follows_leaves_them_as_they_are(store: Shared) {
    let muted = Follows { muted: KindMask::only(5), ..following("team:ars", GOAL) };
    store.import(vec![row(1, "a", "t", Some(muted.clone()))], false).await.unwrap();
    store.import(vec![row(1, "a", "t2", None)], false).await.unwrap();
    assert_eq!(store.device(device_id("a")).await.unwrap().unwrap().follows, muted);
    store.import(vec![row(1, "a", "t2", Some(Follows::default()))], false).await.unwrap();
    assert_eq!(store.device(device_id("a")).await.unwrap().unwrap().follows, Follows::default());
}

pub async fn a_row_that_says_what_is_there_changes_no_time(store: Shared) {
    let boot = instance(&store).await;
    let follows = Follows { muted: KindMask::only(5), ..following("team:ars", KindMask::ALL) };
    let said =
        vec![row(1, "a", "ta", Some(follows.clone())), row(2, "b", "tb", None), row(3, "c", "tc", Some(follows))];
    store.import(said.clone(), false).await.unwrap();
    let id = accept(&store, boot, "evt", Class::Urgent).await.job.id;
    let times = async |id: FanoutId, device: &str| {
        let known = store.explain(id, device_id(device)).await.unwrap().unwrap().device.unwrap();
        (known.view.registered_ms, known.follows_ms, known.created_ms, known.view.version)
    };
    let before = [times(id, "a").await, times(id, "b").await, times(id, "c").await];
    let begun = store.now_ms().await.unwrap();
    while store.now_ms().await.unwrap() <= begun {}
    // The file of the night after: one device has another language, another one follows another team.
    let mut rows = said;
    rows[1].device.locale = Locale::parse("tr").unwrap();
    rows[2].follows = Some(following("team:che", KindMask::ALL));
    let done = store.import(rows.clone(), false).await.unwrap();
    assert_eq!((done.imported, done.updated, done.rejected), (0, 3, vec![]));
    assert_eq!(times(id, "a").await, before[0], "nothing new is said of it");
    let (registered, follows, created, version) = times(id, "b").await;
    assert!(registered > begun && (follows, created, version) == (before[1].1, before[1].2, before[1].3 + 1));
    let (registered, follows, created, version) = times(id, "c").await;
    assert!(registered > begun && follows > begun && (created, version) == (before[2].2, before[2].3));
    assert_eq!((page(&store, "team:ars", GOAL).await.len(), page(&store, "team:che", GOAL).await.len()), (1, 1));
    assert_eq!(store.import(rows, false).await.unwrap().updated, 3);
    assert_eq!(times(id, "c").await, (registered, follows, created, version));
}

/// In opposite order each waits for what the other inserts first: neither may fail, and each device is new once.
pub async fn two_imports_of_the_same_new_devices_at_once_count_each_once(store: Shared) {
    for round in 0..5 {
        let name = |i: u64| format!("{round}-{i}");
        let new = |i: u64| row(i, &name(i), &format!("t-{round}-{i}"), Some(following("team:ars", GOAL)));
        let rows: Vec<ImportRow> = (1..=600).map(new).collect();
        let back: Vec<ImportRow> = rows.iter().rev().cloned().collect();
        let (one, other) = tokio::join!(store.import(rows, false), store.import(back, false));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((one.imported + other.imported, one.updated + other.updated), (600, 600));
    }
    assert_eq!(page(&store, "team:ars", GOAL).await.len(), 3_000);
}

/// However a database writes it: an export says devices in the order of the file they came in.
pub async fn a_large_batch_of_new_devices_is_kept_in_the_order_of_the_file(store: Shared) {
    let name = |line: u64| format!("d-{:04}", 2_000 - line);
    let follows = |line: u64| line.is_multiple_of(2).then(|| following("team:ars", GOAL));
    let rows: Vec<ImportRow> =
        (0..2_000).map(|line| row(line, &name(line), &format!("t-{line}"), follows(line))).collect();
    let done = store.import(rows.clone(), false).await.unwrap();
    assert_eq!((done.imported, done.updated, done.rejected), (2_000, 0, vec![]));
    let page = DevicePage { after: DeviceKey(0), limit: 3_000, state: None };
    let kept = store.device_page(page).await.unwrap();
    let ids: Vec<&str> = kept.iter().map(|view| view.device.id.as_str()).collect();
    assert_eq!(ids, rows.iter().map(|row| row.id().as_str()).collect::<Vec<_>>());
    assert!(kept.iter().zip(&rows).all(|(view, row)| view.device.address == row.device.address));
    assert_eq!(super::world::page(&store, "team:ars", GOAL).await.len(), 1_000);
    let again = store.import(rows, false).await.unwrap();
    assert_eq!((again.imported, again.updated), (0, 2_000));
}

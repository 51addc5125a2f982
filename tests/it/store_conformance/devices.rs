//! Devices: one row per id and per address; mutes and death folded into what a page of followers sees.

use fanfare::domain::ids::{DeviceKey, UserId};
use fanfare::domain::outcome::Outcome::TokenDead;
use fanfare::domain::recipient::{Address, DeviceState, Follows, KindMask, Locale};
use fanfare::store::{ImportRow, PutDevice};

use super::world::*;

const CREATED: PutDevice = PutDevice { created: true, revived: false, moved_from: None };
const UPDATED: PutDevice = PutDevice { created: false, revived: false, moved_from: None };

pub async fn a_device_is_registered_updated_and_deleted(store: Shared) {
    assert_eq!(store.device(device_id("d")).await.unwrap(), None);
    assert!(!store.put_follows(device_id("d"), following("team:ars", GOAL)).await.unwrap());
    assert_eq!(store.put_device(device("d", "t")).await.unwrap(), CREATED);
    assert!(store.put_follows(device_id("d"), following("team:ars", GOAL)).await.unwrap());
    let mut changed = device("d", "t");
    changed.locale = Locale::parse("en").unwrap();
    assert_eq!(store.put_device(changed.clone()).await.unwrap(), UPDATED);
    let view = store.device(device_id("d")).await.unwrap().unwrap();
    assert_eq!((view.device, view.follows), (changed, following("team:ars", GOAL)));
    assert_eq!(view.state, DeviceState::Live);
    assert!(store.delete_device(device_id("d")).await.unwrap());
    assert!(!store.delete_device(device_id("d")).await.unwrap());
    assert_eq!(page(&store, "team:ars", GOAL).await, Vec::<DeviceKey>::new());
}

pub async fn the_version_moves_only_when_something_to_send_by_changed(store: Shared) {
    let version = async || store.device(device_id("d")).await.unwrap().unwrap().version;
    let mut d = device("d", "t");
    store.put_device(d.clone()).await.unwrap();
    store.put_device(d.clone()).await.unwrap();
    store.put_follows(device_id("d"), following("team:ars", GOAL)).await.unwrap();
    assert_eq!(version().await, 1);
    d.user = UserId::parse("somebody-else").unwrap();
    store.put_device(d.clone()).await.unwrap();
    assert_eq!(version().await, 2);
    d.address = Address::Fid("t".to_owned());
    store.put_device(d.clone()).await.unwrap();
    assert_eq!(version().await, 3);
}

pub async fn a_token_moves_with_its_latest_owner(store: Shared) {
    store.put_device(device("old", "t")).await.unwrap();
    store.put_follows(device_id("old"), following("team:ars", GOAL)).await.unwrap();
    let taken = store.put_device(device("new", "t")).await.unwrap();
    assert_eq!(taken, PutDevice { moved_from: Some(device_id("old")), ..CREATED });
    assert_eq!(store.device(device_id("old")).await.unwrap(), None);
    assert_eq!(page(&store, "team:ars", GOAL).await, Vec::<DeviceKey>::new(), "its follows went with it");
    // An existing device takes it over as well, and a fid of the same spelling is another address.
    let mut fid = device("fid", "");
    fid.address = Address::Fid("t".to_owned());
    store.put_device(fid).await.unwrap();
    store.put_device(device("third", "u")).await.unwrap();
    let taken = store.put_device(device("third", "t")).await.unwrap();
    assert_eq!(taken, PutDevice { moved_from: Some(device_id("new")), ..UPDATED });
    assert_eq!(store.device(device_id("new")).await.unwrap(), None);
    assert!(store.device(device_id("fid")).await.unwrap().is_some());
}

pub async fn parallel_registrations_of_one_token_leave_one_device(store: Shared) {
    let posts: Vec<_> = (0..12)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { store.put_device(device(&format!("d{}", i % 6), "t")).await })
        })
        .collect();
    for post in posts {
        post.await.unwrap().unwrap();
    }
    let mut left = 0;
    for i in 0..6 {
        left += usize::from(store.device(device_id(&format!("d{i}"))).await.unwrap().is_some());
    }
    assert_eq!(left, 1);
}

pub async fn mutes_and_death_are_folded_into_kinds_and_revival_restores_them(store: Shared) {
    let boot = instance(&store).await;
    healthy(&store, boot, "well", 1).await;
    let corner = KindMask::only(5);
    let (id, chunk) = one_chunk(&store, boot, "evt", 1).await;
    let follows = Follows { muted: corner, ..following("match:evt", KindMask::ALL) };
    store.put_follows(device_id("evt-0"), follows.clone()).await.unwrap();
    assert_eq!(page(&store, "match:evt", GOAL).await, chunk.keys);
    assert_eq!(page(&store, "match:evt", corner).await, [], "muted");

    store.flush(outcomes(&Hold::from(&chunk), &[(0, TokenDead)])).await.unwrap();
    store.settle(id).await.unwrap();
    assert_eq!(page(&store, "match:evt", GOAL).await, [], "dead");
    store.put_follows(device_id("evt-0"), follows.clone()).await.unwrap();
    assert_eq!(page(&store, "match:evt", GOAL).await, [], "dead, whatever it follows");

    let revived = store.put_device(device("evt-0", "token-evt-0")).await.unwrap();
    assert_eq!(revived, PutDevice { revived: true, ..UPDATED });
    assert_eq!(page(&store, "match:evt", GOAL).await, chunk.keys);
    assert_eq!(page(&store, "match:evt", corner).await, [], "the mute came back too");
    let view = store.device(device_id("evt-0")).await.unwrap().unwrap();
    assert_eq!((view.state, view.follows), (DeviceState::Live, follows));
    assert_eq!(view.version, 3, "judged, revived");
}

pub async fn follows_are_replaced_as_a_set(store: Shared) {
    store.put_device(device("d", "t")).await.unwrap();
    let both = Follows {
        subjects: vec![("player:7".to_owned(), GOAL), ("team:ars".to_owned(), KindMask::ALL)],
        muted: KindMask::NONE,
    };
    store.put_follows(device_id("d"), both).await.unwrap();
    let next = Follows {
        subjects: vec![("team:ars".to_owned(), KindMask::only(5)), ("team:che".to_owned(), GOAL)],
        muted: KindMask::NONE,
    };
    store.put_follows(device_id("d"), next.clone()).await.unwrap();
    assert_eq!(store.device(device_id("d")).await.unwrap().unwrap().follows, next);
    assert_eq!(page(&store, "player:7", GOAL).await, []);
    assert_eq!(page(&store, "team:ars", GOAL).await, []);
    assert_eq!(page(&store, "team:che", GOAL).await.len(), 1);
    store.put_follows(device_id("d"), Follows::default()).await.unwrap();
    assert_eq!(page(&store, "team:che", GOAL).await, []);
}

pub async fn a_former_owner_can_touch_nobody_and_two_phones_are_two(store: Shared) {
    let phone = |id: &str, user: &str, token: &str| {
        let mut phone = device(id, token);
        phone.user = UserId::parse(user).unwrap();
        phone
    };
    store.put_device(phone("of-ann", "ann", "t")).await.unwrap();
    store.put_device(phone("of-bob", "bob", "t")).await.unwrap();
    store.put_device(phone("of-bob-2", "bob", "u")).await.unwrap();
    store.put_follows(device_id("of-bob"), following("team:ars", GOAL)).await.unwrap();
    // What Ann's app does late, when she has logged out long ago.
    assert!(!store.delete_device(device_id("of-ann")).await.unwrap());
    assert!(!store.put_follows(device_id("of-ann"), following("team:che", GOAL)).await.unwrap());
    for (id, token) in [("of-bob", "t"), ("of-bob-2", "u")] {
        let view = store.device(device_id(id)).await.unwrap().unwrap();
        assert_eq!((view.device.user.as_str(), view.device.address.value()), ("bob", token));
    }
    assert_eq!(page(&store, "team:ars", GOAL).await.len(), 1);
    assert_eq!(page(&store, "team:che", GOAL).await, []);
}

pub async fn a_token_that_moves_after_the_freeze_is_gone_for_its_former_device(store: Shared) {
    let boot = instance(&store).await;
    let fanout = frozen(&store, boot, "evt", &[2]).await;
    // Both tokens of the frozen chunk move, one by registering and one by an import; the new ones follow the match too.
    let follows = following("match:evt", KindMask::ALL);
    store.put_device(device("new-0", "token-evt-0")).await.unwrap();
    store.put_follows(device_id("new-0"), follows.clone()).await.unwrap();
    let row = ImportRow { line: 1, device: device("new-1", "token-evt-1"), follows: Some(follows), state: None };
    assert_eq!(store.import(vec![row], false).await.unwrap().moved, 1);
    let chunk = claim(&store, boot, 1).await.pop().unwrap();
    assert_eq!((chunk.chunk.fanout, chunk.recipients), (fanout, vec![None, None]), "nobody is sent to by an old row");
    assert_eq!(page(&store, "match:evt", GOAL).await.len(), 2, "the new owners are asked for from the next event on");
    assert_eq!(claim(&store, boot, 1).await, []);
}

//! Exporting: pages of all devices, by key, each with what it follows.

use fanfare::domain::ids::DeviceKey;
use fanfare::domain::outcome::Outcome::{Delivered, Gone, TokenDead};
use fanfare::domain::recipient::{Address, DeviceState, Follows, KindMask};
use fanfare::store::{DevicePage, DeviceView};

use super::world::*;

async fn all(store: &Shared, limit: u32, state: Option<DeviceState>) -> Vec<DeviceView> {
    let (mut found, mut after) = (Vec::new(), DeviceKey(0));
    loop {
        let page = store.device_page(DevicePage { after, limit, state }).await.unwrap();
        assert!(page.len() <= limit as usize);
        let Some(last) = page.last() else { return found };
        after = last.key;
        found.extend(page);
    }
}

pub async fn pages_hold_every_device_once_as_it_is_shown_alone(store: Shared) {
    assert_eq!(all(&store, 10, None).await, []);
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 5).await;
    store.flush(outcomes(&Hold::from(&chunk), &[(3, TokenDead)])).await.unwrap();
    store.put_device(device("bare", "t")).await.unwrap();
    let mut fid = device("fid", "");
    fid.address = Address::Fid("f".to_owned());
    store.put_device(fid).await.unwrap();
    let two = vec![("team:ars".to_owned(), GOAL), ("match:1".to_owned(), KindMask::ALL)];
    store.put_follows(device_id("fid"), Follows { subjects: two, muted: KindMask::only(5) }).await.unwrap();
    store.delete_device(device_id("evt-1")).await.unwrap();
    let mut single = Vec::new();
    for name in ["evt-0", "evt-2", "evt-3", "evt-4", "bare", "fid"] {
        single.push(store.device(device_id(name)).await.unwrap().unwrap());
    }
    for limit in [1, 2, 5, 6, 100] {
        assert_eq!(all(&store, limit, None).await, single, "by {limit}");
    }
    assert_eq!(all(&store, 2, Some(DeviceState::Live)).await.len(), 6);
    let others = [(0, Delivered), (1, Gone), (2, Delivered), (4, Delivered)];
    store.flush(outcomes(&Hold::from(&chunk), &others)).await.unwrap();
    store.settle(id).await.unwrap();
    let dead = all(&store, 2, Some(DeviceState::Tombstoned)).await;
    assert_eq!(dead.iter().map(|view| view.device.id.as_str()).collect::<Vec<_>>(), ["evt-3"]);
    assert_eq!(all(&store, 2, Some(DeviceState::Live)).await.len(), 5);
}

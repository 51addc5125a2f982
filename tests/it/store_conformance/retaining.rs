//! Retention: what is old goes whole and in small steps, and nothing else does.

use fanfare::domain::batch::Class;
use fanfare::domain::ids::{BootId, FanoutId};
use fanfare::domain::outcome::Outcome::{self, Payload};
use fanfare::store::{Accepted, FanoutQuery, Purge};

use super::world::*;

/// With this nothing is too young.
const ALL: i64 = -1;

/// A settled fan-out all of whose recipients failed, one row each; reported when asked.
async fn ended(store: &Shared, boot: BootId, id: &str, sizes: &[usize], reported: bool) -> FanoutId {
    let fanout = frozen(store, boot, id, sizes).await;
    for chunk in claim(store, boot, sizes.len() as u32).await {
        let all: Vec<(usize, Outcome)> = (0..chunk.keys.len()).map(|i| (i, Payload)).collect();
        store.flush(outcomes(&Hold::from(&chunk), &all)).await.unwrap();
    }
    store.put_parts(boot, vec![(fanout, accepted(0))]).await.unwrap();
    settle(store, fanout).await;
    if reported {
        store.mark_reported(fanout).await.unwrap();
    }
    fanout
}

async fn listed(store: &Shared) -> Vec<FanoutId> {
    let all = FanoutQuery { limit: 100, ..FanoutQuery::default() };
    store.fanouts(all).await.unwrap().iter().map(|view| view.id).collect()
}

/// Steps until nothing is old any more; rows of each.
async fn purge(store: &Shared, boot: BootId) -> Vec<u64> {
    let mut steps = Vec::new();
    loop {
        match store.purge(boot, ALL).await.unwrap() {
            Purge::Deleted(0) => return steps,
            Purge::Deleted(n) => steps.push(n),
            Purge::Elsewhere => panic!("nobody else is at it"),
        }
        assert!(steps.len() < 100, "{steps:?}");
    }
}

pub async fn only_what_is_old_settled_and_reported_is_deleted(store: Shared) {
    let boot = instance(&store).await;
    let gone = ended(&store, boot, "gone", &[2], true).await;
    let unreported = ended(&store, boot, "unreported", &[1], false).await;
    let (open, chunk) = one_chunk(&store, boot, "open", 2).await;
    let freezing = accept(&store, boot, "freezing", Class::Urgent).await.job.id;
    assert_eq!(store.purge(boot, 60_000).await.unwrap(), Purge::Deleted(0), "all of it is young");
    assert_eq!(listed(&store).await, [freezing, open, unreported, gone]);
    purge(&store, boot).await;
    assert_eq!(listed(&store).await, [freezing, open, unreported]);
    store.flush(delivered(&chunk)).await.unwrap();
    assert_eq!(settle(&store, open).await.view.tally.delivered(), 2, "what is sent meanwhile is left alone");
    store.mark_reported(unreported).await.unwrap();
    purge(&store, boot).await;
    assert_eq!(listed(&store).await, [freezing, open]);
}

pub async fn a_fanout_disappears_whole_though_its_rows_go_in_steps(store: Shared) {
    let boot = instance(&store).await;
    let id = ended(&store, boot, "evt", &[500, 500, 300], true).await;
    let device = device_id("evt-0");
    assert!(store.explain(id, device.clone()).await.unwrap().is_some());
    let mut steps = Vec::new();
    loop {
        match store.purge(boot, ALL).await.unwrap() {
            Purge::Deleted(0) => break,
            Purge::Deleted(n) => steps.push(n),
            Purge::Elsewhere => panic!("nobody else is at it"),
        }
        // After every single step, as if it had been the last for a while.
        assert_eq!(store.fanout(id).await.unwrap(), None, "after {steps:?}");
        assert_eq!(store.explain(id, device.clone()).await.unwrap(), None);
        assert_eq!(store.job(id).await.unwrap(), None);
        assert_eq!(store.seen(posted("evt", Class::Urgent, 1).event.id).await.unwrap(), None);
        assert_eq!(listed(&store).await, []);
        assert!(store.sweep(0).await.unwrap().complete.is_empty());
    }
    // The fan-out; then 1,300 failure rows, a part, three chunks and their ids; then its number.
    assert_eq!((steps[0], steps.iter().sum::<u64>()), (1, 1 + 1_300 + 1 + 3 + 3 + 1));
    assert!(steps.iter().all(|n| *n <= 1_000) && steps.len() >= 3, "{steps:?}");
}

pub async fn an_event_that_comes_again_in_the_middle_is_a_new_one(store: Shared) {
    let boot = instance(&store).await;
    let old = ended(&store, boot, "evt", &[500], true).await;
    assert_eq!(store.purge(boot, ALL).await.unwrap(), Purge::Deleted(1));
    let Accepted::New(job) = store.accept(boot, posted("evt", Class::Urgent, 2)).await.unwrap() else {
        panic!("the first is forgotten")
    };
    assert!(job.job.id > old, "numbers are never given twice");
    let keys = page(&store, "match:evt", GOAL).await;
    store.freeze_step(whole(boot, &job, &keys, &[500])).await.unwrap();
    let chunk = claim(&store, boot, 1).await.pop().unwrap();
    assert!(purge(&store, boot).await.iter().sum::<u64>() > 500);
    store.flush(delivered(&chunk)).await.unwrap();
    assert_eq!(settle(&store, job.job.id).await.view.tally.delivered(), 500);
}

pub async fn traces_of_devices_and_instances_go_when_nothing_needs_them(store: Shared) {
    let boot = instance(&store).await;
    let dead = instance(&store).await;
    ended(&store, boot, "evt", &[3], true).await;
    for i in 0..2 {
        store.delete_device(device_id(&format!("evt-{i}"))).await.unwrap();
    }
    lapse(&store, dead).await;
    assert_eq!(store.purge(boot, 60_000).await.unwrap(), Purge::Deleted(0));
    // The fan-out, its five kinds of rows, and last of all two traces and the dead instance.
    assert_eq!(purge(&store, boot).await, [1, 3 + 1 + 1 + 1 + 1, 2 + 1]);
    assert_eq!(store.heartbeat(boot, 60_000).await.unwrap().live_instances, 1, "the live one is kept");
    assert_eq!(store.device(device_id("evt-2")).await.unwrap().map(|view| view.version), Some(1), "devices stay");
}

pub async fn one_instance_at_a_time_deletes(store: Shared) {
    let (first, second) = (instance(&store).await, instance(&store).await);
    ended(&store, first, "evt", &[500, 100], true).await;
    assert_eq!(store.purge(first, ALL).await.unwrap(), Purge::Deleted(1));
    assert_eq!(store.purge(second, ALL).await.unwrap(), Purge::Elsewhere);
    assert!(!purge(&store, first).await.is_empty());
    assert_eq!(store.purge(second, ALL).await.unwrap(), Purge::Elsewhere, "for a minute after its last step");
}

//! Sweeps: where one got to, and where the next one begins.

use fanfare::domain::ids::DeviceKey;
use fanfare::domain::outcome::Outcome::Delivered;
use fanfare::store::{NewSweep, SweepBegun};

use super::world::*;

pub async fn a_sweep_goes_on_at_the_first_device_without_an_outcome_wherever_it_is(store: Shared) {
    let boot = instance(&store).await;
    let keys = followers(&store, "swept", 6).await;
    let after = DeviceKey(keys[0].0 - 1);
    let new = NewSweep { event: event("swept"), after, max_attempts: 9, accept_dead_percent: None, lasts_ms: 60_000 };
    let SweepBegun::Begun(sweep) = store.begin_sweep(boot, new).await.unwrap() else { panic!("there is no other") };
    let id = sweep.job.id;
    assert_eq!(store.sweep_end(id).await.unwrap().unwrap().after, after, "nothing is frozen");
    store.freeze_step(whole(boot, &sweep, &keys, &[2, 2, 2])).await.unwrap();
    let chunks = claim(&store, boot, 3).await;
    store.release(boot, vec![(chunks[0].chunk, chunks[0].epoch)], 0).await.unwrap();
    store.cancel(id).await.unwrap();
    // The first ended as a whole, and then its outcomes came after all.
    store.flush(delivered(&chunks[0])).await.unwrap();
    store.flush(outcomes(&Hold::from(&chunks[1]), &[(0, Delivered)])).await.unwrap();
    let end = store.sweep_end(id).await.unwrap().unwrap();
    assert_eq!((end.from, end.after, end.withheld.len()), (after, DeviceKey(keys[3].0 - 1), 0));
    assert_eq!(end.resumes_after(), end.after);
}

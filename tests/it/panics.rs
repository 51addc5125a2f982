//! A panic in one delivery ends that one. Compiled with the feature `mutants` only; `tests/mutants` runs it.

use crate::harness::service::{Database, World};
use crate::harness::together::together;

async fn panics(at: &'static str) {
    let mut world = World::new(Database::Sqlite, false).await;
    world.settings.insert("FANFARE_PANIC".into(), at.into());
    world.settings.insert("FANFARE_PANIC_OF".into(), "ok-panic-7".into());
    let service = world.spawn().await;
    let token = |i| if i == 7 { "ok-panic-7".to_owned() } else { format!("ok-calm-{i}") };
    let tokens: Vec<String> = (0..600).map(token).collect();
    service.follow("panic", &tokens).await;
    for round in 1..=2 {
        let id = service.goal(&format!("panic-{round}"), "panic", 600).await;
        let fanout = service.settled(&id).await;
        assert_eq!((fanout.delivered, fanout.outcomes["internal"]), (599, 1), "{at}: {fanout:?}");
        assert_eq!(service.line(&id).await["internal"], 1);
    }
    assert_eq!(service.said("an attempt panicked").len(), 2, "{at}: once for each goal");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_ends_one_recipient_and_no_other() {
    together(vec![("in the body", Box::pin(panics("body"))), ("in the attempt", Box::pin(panics("attempt")))]).await;
}

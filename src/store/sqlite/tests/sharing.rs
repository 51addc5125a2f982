//! Owns the tests of which jobs share a commit: many small ones, and the pieces of bulk work while nobody waits.
//! Must never know: anything outside the room.

use super::*;

/// A job that says it writes so many rows.
async fn says(store: &Arc<SqliteStore>, rows: usize) -> tokio::task::JoinHandle<Result<(), StoreError>> {
    let theirs = Arc::clone(store);
    in_queue(store, async move { theirs.writer.run(rows, |_| async { Ok(()) }.boxed()).await }).await
}

/// The same as a piece of bulk work.
async fn bulk(store: &Arc<SqliteStore>, rows: usize) -> tokio::task::JoinHandle<Result<(), StoreError>> {
    let theirs = Arc::clone(store);
    in_queue(store, async move { theirs.writer.run_bulk(rows, |_| async { Ok(()) }.boxed()).await }).await
}

async fn import(
    store: &Arc<SqliteStore>,
    lines: std::ops::Range<u64>,
) -> tokio::task::JoinHandle<Result<Imported, StoreError>> {
    let theirs = Arc::clone(store);
    in_queue(store, async move { theirs.import(lines.map(row).collect(), false).await }).await
}

/// Commits after the jobs that were queued behind one that held the writer, without its own.
async fn commits(store: &SqliteStore, gate: oneshot::Sender<()>, before: u64) -> u64 {
    gate.send(()).unwrap();
    // Handed over last: all others have ended then.
    store.writer.run(1, |_| async { Ok(()) }.boxed()).await.unwrap();
    store.write_counts().commits - before - 2
}

#[tokio::test]
async fn a_batch_ends_after_a_thousand_rows() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let (gate, before) = (hold(&store).await, store.write_counts().commits);
    let jobs = [says(&store, 600).await, says(&store, 600).await, says(&store, 600).await, says(&store, 600).await];
    assert_eq!(commits(&store, gate, before).await, 2);
    for job in jobs {
        job.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn bulk_work_shares_a_commit_while_nobody_waits() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let (gate, before) = (hold(&store).await, store.write_counts().commits);
    let pieces = [import(&store, 1..301).await, import(&store, 301..601).await, import(&store, 601..901).await];
    assert_eq!(commits(&store, gate, before).await, 1);
    for piece in pieces {
        assert_eq!(piece.await.unwrap().unwrap().imported, 300);
    }
}

#[tokio::test]
async fn whoever_comes_between_ends_the_transaction_of_bulk_work_and_shares_none_with_it() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let (gate, before) = (hold(&store).await, store.write_counts().commits);
    let first = [import(&store, 1..10).await, import(&store, 10..20).await];
    let goal = queued(&store, |c| correct::accept(c, BootId::fresh(), goal("evt-1")).boxed()).await;
    let rest = import(&store, 20..30).await;
    assert_eq!(commits(&store, gate, before).await, 3, "two pieces, the goal, the third piece");
    assert!(matches!(goal.await.unwrap().unwrap(), Accepted::New(_)));
    for piece in first.into_iter().chain([rest]) {
        piece.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn bulk_work_commits_in_the_end_although_nobody_waits() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let (gate, before) = (hold(&store).await, store.write_counts().commits);
    let pieces = [bulk(&store, 6_000).await, bulk(&store, 6_000).await, bulk(&store, 6_000).await];
    assert_eq!(commits(&store, gate, before).await, 2);
    for piece in pieces {
        piece.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_piece_of_bulk_work_that_fails_leaves_nothing_of_those_in_its_transaction() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let gate = hold(&store).await;
    let innocent = import(&store, 1..10).await;
    let twice = import(&store, 10..11).await;
    let theirs = Arc::clone(&store);
    let failing = in_queue(&store, async move { theirs.import(vec![row(11), row(11)], false).await }).await;
    let later = import(&store, 20..30).await;
    gate.send(()).unwrap();
    for lost in [innocent, twice] {
        assert!(matches!(lost.await.unwrap(), Err(StoreError::Unavailable(_))));
    }
    assert!(matches!(failing.await.unwrap(), Err(StoreError::Statement(_))), "it hears what was wrong with it");
    assert_eq!(later.await.unwrap().unwrap().imported, 10);
    let again = store.import((1..30).map(row).collect(), false).await.unwrap();
    assert_eq!((again.imported, again.updated), (19, 10), "nothing of the transaction was kept");
}

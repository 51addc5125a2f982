//! Owns running stories side by side inside one test, since each mostly waits.
//! Must never know: what they tell.

use futures_util::future::BoxFuture;

/// Runs them all; the first that fails is named.
pub async fn together(stories: Vec<(&'static str, BoxFuture<'static, ()>)>) {
    let running: Vec<_> = stories.into_iter().map(|(name, story)| (name, tokio::spawn(story))).collect();
    for (name, story) in running {
        story.await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

//! Owns the callers of the day: every post at its time, again and again until somebody takes it.
//! Must never know: faults, or what becomes of what was taken.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::audience;
use super::day::{Day, Post, What};
use super::fleet::Seats;
use super::observed::Posted;
use crate::client::ClientError;
use crate::wire::{EventAccepted, EventRequest, SupersedesRequest};

/// Longest a caller tries. Longer than any fault of a soak lasts.
const PATIENCE: Duration = Duration::from_secs(90);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(100);

/// Plays the day from `begun` on; what became of every post, in the order of the day. `progress` is told how many were taken.
pub async fn play(day: &Day, run: &str, seats: &Seats, begun: Instant, progress: impl Fn(usize)) -> Vec<Posted> {
    let mut requests: Vec<EventRequest> = Vec::new();
    let mut posted: Vec<Posted> = Vec::new();
    let mut calls = JoinSet::new();
    for (at, post) in day.posts.iter().enumerate() {
        sleep_until(begun + Duration::from_millis(post.at_ms)).await;
        let request = request(run, day, post, &requests);
        posted.push(Posted { event_id: request.id.clone(), ..known(day, post, at, &posted) });
        requests.push(request.clone());
        let seats = seats.clone();
        calls.spawn(async move { (at, take(&seats, &request, at).await) });
        while let Some(Ok((at, answer))) = calls.try_join_next() {
            note(&mut posted[at], answer);
        }
        progress(at + 1 - calls.len());
    }
    while let Some(answer) = calls.join_next().await {
        if let Ok((at, answer)) = answer {
            note(&mut posted[at], answer);
        }
        progress(day.posts.len() - calls.len());
    }
    uncertain(day, &mut posted);
    posted
}

fn request(run: &str, day: &Day, post: &Post, before: &[EventRequest]) -> EventRequest {
    let fresh = audience::event(run, day, post, OffsetDateTime::now_utc());
    match post.what {
        What::News => fresh,
        What::Repeat(of) => before[of].clone(),
        What::SameNews(of) => EventRequest { id: fresh.id, ..before[of].clone() },
        What::Corrects(of, mode) => {
            let supersedes = SupersedesRequest { event_id: before[of].id.clone(), mode: mode.to_owned() };
            EventRequest { supersedes: Some(supersedes), ..fresh }
        }
    }
}

/// What is known of a post before it is answered.
fn known(day: &Day, post: &Post, at: usize, before: &[Posted]) -> Posted {
    let fixture = &day.fixtures[post.fixture];
    let expected = audience::expected(fixture, post.kind);
    let fresh = Posted {
        story: at,
        kind: post.kind.to_owned(),
        occurred_ms: post.at_ms,
        expected: Some(expected),
        bad: audience::bad(fixture),
        ..Posted::default()
    };
    match post.what {
        What::News => fresh,
        What::Repeat(of) | What::SameNews(of) => {
            // It happened when it happened first.
            Posted { story: if post.id == day.posts[of].id { of } else { at }, ..fresh_at(fresh, &before[of]) }
        }
        What::Corrects(of, _) => Posted { story: before[of].story, expected: None, ..fresh },
    }
}

fn fresh_at(fresh: Posted, first: &Posted) -> Posted {
    Posted { occurred_ms: first.occurred_ms, ..fresh }
}

/// Of what was corrected nobody can say who was still sent it.
fn uncertain(day: &Day, posted: &mut [Posted]) {
    for post in &day.posts {
        let What::Corrects(of, _) = post.what else { continue };
        let story = posted[of].story;
        posted.iter_mut().filter(|p| p.story == story).for_each(|p| p.expected = None);
    }
    // The same news taken into another's fan-out is that fan-out's story.
    for at in 0..posted.len() {
        let first = posted[..at].iter().find(|p| p.fanout.is_some() && p.fanout == posted[at].fanout);
        if let Some((story, expected)) = first.map(|p| (p.story, p.expected)) {
            (posted[at].story, posted[at].expected) = (story, expected);
        }
    }
}

fn note(posted: &mut Posted, answer: Result<EventAccepted, String>) {
    match answer {
        Ok(accepted) => posted.fanout = Some(accepted.fanout_id),
        Err(code) => posted.refused = Some(code),
    }
}

/// Posts to one instance after the other until one takes it, or says that none will.
async fn take(seats: &Seats, request: &EventRequest, first: usize) -> Result<EventAccepted, String> {
    let (begun, mut turn, mut last) = (Instant::now(), first, "no instance runs".to_owned());
    while begun.elapsed() < PATIENCE {
        let running = seats.all();
        if let Some(seat) = running.get(turn % running.len().max(1)) {
            match seat.client.post_event(request).await {
                Ok((accepted, _)) => return Ok(accepted),
                Err(ClientError::Refused(problem)) if !problem.retryable => return Err(problem.code),
                Err(fault) => last = fault.to_string(),
            }
        }
        turn += 1;
        sleep(AGAIN).await;
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day() -> Day {
        Day::plan(7, 600_000, 90.0)
    }

    fn requests(day: &Day) -> Vec<EventRequest> {
        let mut requests = Vec::new();
        for post in &day.posts {
            requests.push(request("r1", day, post, &requests));
        }
        requests
    }

    #[test]
    fn a_repeat_is_the_same_to_the_letter_and_the_same_news_differs_in_its_id_alone() {
        let day = day();
        let requests = requests(&day);
        for (at, post) in day.posts.iter().enumerate() {
            match post.what {
                What::News => assert!(requests[at].supersedes.is_none()),
                What::Repeat(of) => assert_eq!(requests[at], requests[of]),
                What::SameNews(of) => {
                    assert_ne!(requests[at].id, requests[of].id);
                    assert_eq!(EventRequest { id: requests[of].id.clone(), ..requests[at].clone() }, requests[of]);
                }
                What::Corrects(of, mode) => {
                    let said = requests[at].supersedes.as_ref().unwrap();
                    assert_eq!((&said.event_id, said.mode.as_str()), (&requests[of].id, mode));
                }
            }
        }
    }

    #[test]
    fn a_correction_leaves_its_whole_story_without_an_expected_audience() {
        let day = day();
        let mut posted: Vec<Posted> = Vec::new();
        for (at, post) in day.posts.iter().enumerate() {
            posted.push(known(&day, post, at, &posted));
        }
        uncertain(&day, &mut posted);
        let corrected = |at: usize| day.posts.iter().any(|p| matches!(p.what, What::Corrects(of, _) if of == at));
        for (at, post) in day.posts.iter().enumerate() {
            match post.what {
                What::Corrects(of, _) => assert_eq!((posted[at].story, posted[at].expected), (of, None)),
                What::Repeat(of) => assert_eq!(posted[at].story, of),
                _ => assert_eq!((posted[at].story, posted[at].expected.is_none()), (at, corrected(at))),
            }
        }
    }
}

//! Quota, latency and the limit on streams.

use std::time::Instant;

use fanfare::emulator::Rule;

use super::*;

#[tokio::test]
async fn over_the_quota_it_answers_429_and_says_when() {
    let emulator = started(Settings::default(), Control { quota_per_minute: Some(5), ..Control::default() });
    let client = connect(&emulator).await;
    // A 4xx uses quota, a scripted 429 and a refused stream do not.
    for token in ["ok-1", "ok-2", "ok-3", "dead-1", "quota-1", "refused-1", "ok-4"] {
        let _ = send(&client, token).await;
    }
    let over = send(&client, "ok-5").await.unwrap();
    let wait: u32 = over.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert!(line(&Ok(over)).starts_with("429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED"));
    emulator.control(&Control { quota_per_minute: Some(0), ..Control::default() }).unwrap();
    assert_eq!(send(&client, "ok-6").await.unwrap().status, 200);
    let want = ["ok", "ok", "ok", "dead", "quota", "refused", "ok", "over-quota", "ok"];
    assert_eq!(names(&emulator.log()), want);
}

#[tokio::test]
async fn no_answer_comes_before_its_latency() {
    let emulator = started(Settings::default(), Control { latency_ms: Some(60), ..Control::default() });
    let client = connect(&emulator).await;
    let timed = async |token: &str| {
        let begun = Instant::now();
        let _ = send(&client, token).await.unwrap();
        begun.elapsed()
    };
    assert!(timed("ok-1").await >= Duration::from_millis(60));
    assert!(timed("dead-1").await >= Duration::from_millis(60));
    assert!(timed("slow-90-1").await >= Duration::from_millis(150));
    let rule = Rule { prefix: "x-".into(), answer: "internal".into(), latency_ms: 30, ..Rule::default() };
    emulator.control(&Control { rules: vec![rule], ..Control::default() }).unwrap();
    assert!(timed("x-1").await >= Duration::from_millis(90));
}

#[tokio::test]
async fn a_client_that_goes_away_during_the_latency_was_accepted() {
    let emulator = started(Settings::default(), Control { latency_ms: Some(60_000), ..Control::default() });
    let client = connect(&emulator).await;
    let waiting = tokio::spawn(async move { post(&client, SEND, "", goal("ok-1")).await });
    timeout(LONG, emulator.logged(1)).await.unwrap();
    waiting.abort();
    assert_eq!((emulator.stats().accepted, emulator.log()[0].accepted), (1, true));
}

#[tokio::test]
async fn the_stream_limit_is_announced_and_excess_requests_wait() {
    let settings = Settings { max_streams: 4, ..Settings::default() };
    let emulator = started(settings, Control { latency_ms: Some(20), ..Control::default() });
    let client = connect(&emulator).await;
    assert_eq!(client.current_max_send_streams(), 4);
    let tokens: Vec<String> = (0..20).map(|n| format!("ok-{n}")).collect();
    let answers = futures_util::future::join_all(tokens.iter().map(|token| send(&client, token))).await;
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().status == 200));
    let stats = emulator.stats();
    assert_eq!((stats.peak_streams_per_connection, stats.accepted), (4, 20));
}

#[tokio::test]
async fn unless_told_otherwise_it_announces_a_hundred_streams() {
    let emulator = open_to_all();
    assert_eq!(connect(&emulator).await.current_max_send_streams(), 100);
}

#[tokio::test]
async fn a_hanging_stream_gives_its_place_back_when_the_client_resets_it() {
    let emulator = started(Settings { max_streams: 1, ..Settings::default() }, Control::default());
    let client = connect(&emulator).await;
    let hanging = tokio::spawn({
        let client = client.clone();
        async move { post(&client, SEND, "", goal("hang-1")).await }
    });
    timeout(LONG, emulator.logged(1)).await.unwrap();
    let next = tokio::spawn(async move { send(&client, "ok-1").await.unwrap().status });
    hanging.abort();
    assert_eq!(timeout(LONG, next).await.unwrap().unwrap(), 200);
}

#[tokio::test]
async fn the_quota_of_a_device_is_its_own_and_says_whose_it_is() {
    let emulator = started(Settings::default(), Control { device_quota_per_minute: Some(2), ..Control::default() });
    let client = connect(&emulator).await;
    let mut lines = Vec::new();
    for token in ["ok-1", "ok-1", "ok-1", "ok-2"] {
        lines.push(line(&send(&client, token).await));
    }
    assert!(lines[2].starts_with("429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED Quota=device retry-after="), "{lines:?}");
    assert_eq!(names(&emulator.log()), ["ok", "ok", "over-device-quota", "ok"]);
}

#[tokio::test]
async fn the_quota_says_when_in_any_form_it_is_told() {
    let emulator = started(Settings::default(), Control { quota_per_minute: Some(1), ..Control::default() });
    let client = connect(&emulator).await;
    send(&client, "ok-1").await.unwrap();
    let past = "Wed, 21 Oct 2015 07:28:00 GMT";
    for form in ["", "0", "1.5", "-5", "soon", past, "99999999999999999999"] {
        emulator.control(&Control { quota_retry_after: Some(form.into()), ..Control::default() }).unwrap();
        let answer = send(&client, "ok-2").await.unwrap();
        let said = answer.headers.get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        assert_eq!((answer.status.as_u16(), said), (429, (!form.is_empty()).then(|| form.to_owned())));
    }
}

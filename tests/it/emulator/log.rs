//! The log and the counts say exactly what was sent.

use super::*;

#[tokio::test]
async fn log_and_counts_say_exactly_what_was_sent() {
    let emulator = open_to_all();
    let (one, two) = (connect(&emulator).await, connect(&emulator).await);
    let tokens: Vec<String> =
        (0..300).map(|n| format!("{}-{n}", ["ok", "dead", "quota-3", "refused", "reset"][n % 5])).collect();
    let sends = tokens.iter().enumerate().map(|(n, token)| send(if n % 2 == 0 { &one } else { &two }, token));
    futures_util::future::join_all(sends).await;
    let stats = emulator.stats();
    assert_eq!((stats.requests, stats.refused, stats.accepted), (240, 60, 60));
    assert_eq!((stats.distinct_accepted, stats.duplicates_accepted), (60, 0));
    let want = [("dead", 60), ("ok", 60), ("quota", 60), ("refused", 60), ("reset", 60)];
    assert_eq!(stats.answers.iter().map(|(name, n)| (name.as_str(), *n)).collect::<Vec<_>>(), want);
    assert_eq!(stats.per_second.iter().sum::<u32>(), 240);
    assert!(stats.max_in_1s >= *stats.per_second.iter().max().unwrap() && stats.max_in_1s <= 240);
    assert_eq!((stats.connections_opened, stats.connections_open), (2, 2));

    let log = emulator.log();
    let mut logged: Vec<&str> = log.iter().map(|entry| entry.token.as_str()).collect();
    logged.sort_unstable();
    let mut sent: Vec<&str> = tokens.iter().map(String::as_str).collect();
    sent.sort_unstable();
    assert_eq!(logged, sent);
    assert!(log.iter().enumerate().all(|(at, entry)| entry.seq == at as u64 + 1));
    assert!(log.windows(2).all(|pair| pair[0].t_ns <= pair[1].t_ns));
    assert!(log.iter().all(|entry| entry.ttl_s == Some(120) && entry.collapse_key.as_deref() == Some("match-4711")));
    assert!(log.iter().all(|entry| entry.content == log[0].content));
    assert_eq!(log.iter().map(|entry| entry.connection).max(), Some(2));
}

pub(super) async fn fetch(emulator: &Emulator, path: &str) -> String {
    let url = format!("{}{path}", emulator.endpoint());
    reqwest::get(url).await.unwrap().error_for_status().unwrap().text().await.unwrap()
}

fn parsed(ndjson: &str) -> Vec<LogEntry> {
    ndjson.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn over_http_and_in_the_file_the_log_is_the_same() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let settings = Settings { log_file: Some(file.path().to_owned()), ..Settings::default() };
    let emulator = started(settings, Control::default());
    let client = connect(&emulator).await;
    // More than one page of the log.
    for n in 0..1200 {
        send(&client, &format!("ok-{n}")).await.unwrap();
    }
    let log = emulator.log();
    assert_eq!(log.len(), 1200);
    assert_eq!(parsed(&fetch(&emulator, "/emulator/log").await), log);
    assert_eq!(parsed(&fetch(&emulator, "/emulator/log?since=1190").await), log[1190..]);
    assert_eq!(fetch(&emulator, "/emulator/log?since=1200").await, "");
    assert_eq!(parsed(&std::fs::read_to_string(file.path()).unwrap()), log);
    let stats: fanfare::emulator::Stats = serde_json::from_str(&fetch(&emulator, "/emulator/stats").await).unwrap();
    assert_eq!((stats.requests, stats.accepted), (1200, 1200));
    let url = format!("{}/emulator/log?since=last", emulator.endpoint());
    assert_eq!(reqwest::get(url).await.unwrap().status(), 400);
}

#[tokio::test]
async fn the_busiest_second_is_exactly_that_of_the_log() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    for burst in [40, 90, 10] {
        let tokens: Vec<String> = (0..burst).map(|n| format!("ok-{n}")).collect();
        futures_util::future::join_all(tokens.iter().map(|token| send(&client, token))).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    let times: Vec<u64> = emulator.log().iter().map(|entry| entry.t_ns).collect();
    let within = |first: &u64| times.iter().filter(|t| (*first..first + 1_000_000_000).contains(*t)).count();
    assert_eq!(emulator.stats().max_in_1s as usize, times.iter().map(within).max().unwrap());
}

//! A Redis that answers but cannot serve is away, and the reason is kept.

use std::time::Duration;

use fanfare::ceiling::Mode;
use secrecy::{ExposeSecret, SecretString};

use super::{Instance, RATE, SOON, assert_under, settings};
use crate::harness::redis::RedisServer;

/// Breaks Redis for one instance, mends it, and says what the instance gave as its reason in between.
async fn reason_for(break_it: &[&str], mend_it: &[&str]) -> String {
    let redis = RedisServer::start().await;
    let instance = Instance::start(settings(Some(redis.url()), true), 1);
    instance.shows(|now| now.used > 100).await;
    // The test's own connection stays in while the server's password changes.
    let mut own = redis.connection().await;
    let mut run = async |words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).query_async::<()>(&mut own).await.expect("an answer");
    };
    run(break_it).await;
    // A busy machine may have left for its own reason just before; the next try to come back finds this one.
    let away = instance.shows(|now| now.mode == Mode::Split && now.reason != "redis: silent").await;
    run(mend_it).await;
    let back = instance.mode(Mode::Shared).await;
    instance.shows(|now| now.used > back.used + 100).await;
    assert_under(&instance.stop().await.at, 1.10);
    away.reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_redis_that_answers_but_cannot_serve_is_away_and_says_why() {
    let key = "{fanfare:test}:fcm.send";
    let clients = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    let reasons = tokio::join!(
        async {
            let script = format!("redis.call('DEL', '{key}') return redis.call('SET', '{key}', 'x')");
            reason_for(&["EVAL", &script, "0"], &["DEL", key]).await
        },
        reason_for(&["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"]),
        reason_for(&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
        reason_for(&clients, &["PING"]),
    );
    let (wrong_type, full, replica, killed) = reasons;
    assert_eq!(
        [wrong_type, full, replica, killed],
        ["redis: WRONGTYPE", "redis: OOM", "redis: READONLY", "redis: connection lost"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_redis_that_wants_another_password_is_away_from_the_start() {
    let redis = RedisServer::start().await;
    redis.command::<()>(&["CONFIG", "SET", "requirepass", "right"]).await;
    for query in ["", "?pass=hunter2"] {
        let url = SecretString::from(format!("{}{query}", redis.url().expose_secret()));
        let instance = Instance::start(settings(Some(url), true), 1);
        let away = instance.shows(|now| now.mode == Mode::Split && now.used > 0).await;
        let expected = if query.is_empty() { "redis: NOAUTH" } else { "redis: authentication failed" };
        assert_eq!(away.reason, expected);
        instance.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_from_a_clock_gone_back_or_from_a_stranger_holds_nobody_up() {
    let redis = RedisServer::start().await;
    let instance = Instance::start(settings(Some(redis.url()), true), 1);
    instance.shows(|now| now.used > 100).await;
    let key = "{fanfare:test}:fcm.send";
    let stored: Vec<f64> = redis.command(&["HMGET", key, "due", "pause", "pace", "cut"]).await;
    assert_eq!(stored[1..], [0.0, 1_000_000.0, 0.0], "nothing is in force");
    let hour = 3_600e6;
    let fields = [
        ("due", format!("{}", stored[0] + hour)),
        ("due", "nan".to_owned()),
        ("due", "x".to_owned()),
        ("pause", format!("{}", stored[0] + 2.0 * hour)),
        ("pause", "-1".to_owned()),
        ("pace", "0".to_owned()),
        ("cut", format!("{}", stored[0] + hour)),
    ];
    for (field, value) in fields {
        let before = instance.ceiling.snapshot().used;
        redis.command::<()>(&["HSET", key, field, &value]).await;
        let now = instance.shows(|now| now.mode == Mode::Shared && now.used > before + RATE as u64 / 4).await;
        assert_eq!(now.paused_for, Duration::ZERO, "{field} = {value}");
    }
    assert_under(&instance.stop().await.at, 1.10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_redis_that_is_still_loading_is_away_and_says_why() {
    let mut redis = RedisServer::start().await;
    let instance = Instance::start(settings(Some(redis.url()), true), 1);
    instance.mode(Mode::Shared).await;
    // 40 MB to a busy disk take longer than a client usually waits for an answer.
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(SOON));
    let client = redis::Client::open(redis.url().expose_secret()).expect("its url");
    let mut own = client.get_multiplexed_async_connection_with_config(&patient).await.expect("a connection");
    let mut run = async |words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).query_async::<()>(&mut own).await.expect("an answer");
    };
    run(&["CONFIG", "SET", "rdbcompression", "no"]).await;
    let fill = "for i = 1, 100 do redis.call('SET', 'filler:' .. i, string.rep('x', 400000)) end";
    run(&["EVAL", fill, "0"]).await;
    run(&["SAVE"]).await;
    redis.kill().await;
    // It looks up from its loading every 2 MB, five keys, and so every 50 ms.
    let loading = redis.run_with(&["--key-load-delay", "10000"]);
    let (now, ()) = tokio::join!(instance.shows(|now| now.reason == "redis: LOADING"), loading);
    assert_eq!(now.mode, Mode::Split);
    assert_eq!(instance.mode(Mode::Shared).await.reason, "");
    assert_under(&instance.stop().await.at, 1.10);
}

//! Control while it runs: what is refused, what is in force, and the way back to calm.

use fanfare::emulator::{Act, GoAway, Network, Rule};

use super::*;

#[tokio::test]
async fn rules_given_at_run_time_over_http_apply_at_once_and_go_away() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let outage = json!({"rules": [{"prefix": "", "answer": "unavailable", "times": 1, "retry_after": 7}]});
    let (status, in_force) = tell(&emulator, outage).await;
    assert_eq!((status, &in_force["rules"][0]["answer"]), (200, &json!("unavailable")));
    let first = line(&send(&client, "ok-1").await);
    assert_eq!(first, "503 UNAVAILABLE Fcm=UNAVAILABLE retry-after=7");
    assert_eq!(send(&client, "ok-1").await.unwrap().status, 200, "times: 1");

    let (status, fault) =
        tell(&emulator, json!({"reset": true, "rules": [{"prefix": "", "answer": "sunshine"}]})).await;
    assert_eq!(status, 400);
    assert!(fault["error"].as_str().unwrap().contains("`sunshine`"), "{fault}");
    assert_eq!(emulator.stats().requests, 2, "what is refused changes nothing");
    assert_eq!(tell(&emulator, json!({"latncy_ms": 5})).await.0, 400);

    assert_eq!(tell(&emulator, json!({"clear_rules": true, "reset": true})).await.0, 200);
    assert_eq!((emulator.stats().requests, emulator.log().len()), (0, 0));
    assert_eq!(send(&client, "ok-2").await.unwrap().status, 200);
    assert_eq!((emulator.log()[0].seq, emulator.stats().connections_open), (1, 1));
}

#[tokio::test]
async fn what_it_cannot_do_is_refused_by_name_and_changes_nothing() {
    let emulator = open_to_all();
    let before = tell(&emulator, json!({})).await.1;
    let cases = [
        (json!({"latency_ms": 5, "latncy_ms": 5}), "latncy_ms"),
        (json!({"latency_ms": 5, "network": {"max_stream": 5}}), "max_stream"),
        (json!({"latency_ms": 5, "network": {"now": [{"act": "explode"}]}}), "explode"),
        (json!({"latency_ms": 5, "network": {"now": [{"act": "goaway", "last": 5}]}}), "last"),
        (json!({"latency_ms": 5, "network": {"now": [{"act": "fin", "conection": 5}]}}), "conection"),
        (json!({"latency_ms": 5, "rules": [{"prefix": "", "answer": "dead", "often": 5}]}), "often"),
        (json!({"latency_ms": 5, "oauth_answer": "sunshine"}), "sunshine"),
        (json!({"latency_ms": 5, "oauth_times": 5}), "oauth_answer"),
        (json!({"latency_ms": 5, "quota_retry_after": "a\nb"}), "quota_retry_after"),
        (json!({"latency_ms": -5}), "-5"),
        (json!("calm"), "a map"),
        (json!([]), "a map"),
        (json!({"latency_ms": 5, "network": {"initial_window": 1_u32 << 31}}), "initial_window"),
    ];
    for (change, word) in cases {
        let (status, fault) = tell(&emulator, change).await;
        assert_eq!(status, 400, "{fault}");
        assert!(fault["error"].as_str().unwrap().contains(word), "{word}: {fault}");
    }
    assert_eq!(tell(&emulator, json!({})).await.1, before);
}

/// Everything that stays until it is taken back.
fn storm() -> Control {
    let network = Network {
        max_streams: Some(3),
        initial_window: Some(9),
        ignore_pings: Some(true),
        early_hints: Some(true),
        goaway_every: Some(50),
        goaway_unprocessed: Some(4),
        black_hole_after: Some(60),
        mute_ms: Some(1),
        refuse_ms: Some(0),
        now: vec![Act::Goaway(GoAway { connection: Some(9), ..GoAway::default() })],
    };
    Control {
        latency_ms: Some(1),
        jitter_ms: Some(2),
        quota_per_s: Some(1000),
        quota_per_minute: Some(2000),
        device_quota_per_minute: Some(200),
        quota_retry_after: Some("7".into()),
        token_lifetime_s: Some(60),
        oauth_answer: Some("grant-clock".into()),
        oauth_times: Some(2),
        oauth_retry_after: Some(3),
        oauth_latency_ms: Some(1),
        clock_skew_s: Some(-5),
        rules: vec![Rule { prefix: "x".into(), answer: "dead".into(), ..Rule::default() }],
        network,
        ..Control::default()
    }
}

#[test]
fn the_manual_has_every_field_and_every_count() {
    let manual = include_str!("../../../docs/EMULATOR.md");
    let control = json!(storm());
    let stats = json!(fanfare::emulator::Stats::default());
    let quiet = ["uptime_ms", "log_write_failures"];
    for object in [&control, &control["network"], &stats] {
        for name in object.as_object().unwrap().keys().filter(|name| !quiet.contains(&name.as_str())) {
            assert!(manual.contains(&format!("`{name}`")), "missing in docs/EMULATOR.md: {name}");
        }
    }
}

#[tokio::test]
async fn what_is_in_force_is_shown_and_one_call_brings_back_what_it_was_started_with() {
    let emulator = started(Settings::default(), Control { latency_ms: Some(4), ..Control::default() });
    let show = async || serde_json::from_str::<Value>(&log::fetch(&emulator, "/emulator/control").await).unwrap();
    let calm = show().await;
    assert_eq!(
        (&calm["latency_ms"], &calm["check_auth"], &calm["oauth_answer"]),
        (&json!(4), &json!(false), &json!("ok"))
    );
    emulator.control(&storm()).unwrap();
    tokio::time::sleep(Duration::from_millis(2)).await;
    let in_force = show().await;
    let same = |shown: &Value, calm: &Value| -> Vec<String> {
        let shown = shown.as_object().unwrap().iter();
        shown.filter(|(name, value)| **value == calm[name.as_str()]).map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(same(&in_force, &calm), ["check_auth"]);
    assert_eq!(same(&in_force["network"], &calm["network"]), ["mute_ms", "refuse_ms"], "neither lasts");
    assert_eq!(tell(&emulator, json!({"calm": true})).await, (200, calm.clone()));
    let both = json!({"calm": true, "latency_ms": 9});
    assert_eq!(tell(&emulator, both).await.1["latency_ms"], 9, "calm comes first");
}

#[tokio::test]
async fn the_second_listener_has_the_pages_only_and_is_out_of_reach_of_any_fault() {
    let control_listen = Some("127.0.0.1:0".parse().unwrap());
    let emulator = started(Settings { control_listen, ..Settings::default() }, Control::default());
    let desk = format!("http://{}", emulator.control_addr().unwrap());
    let client = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
    assert_eq!(client.post(format!("{desk}{SEND}")).body(goal("t")).send().await.unwrap().status(), 404);
    let shut = json!({"network": {"mute_ms": 3_600_000, "refuse_ms": 3_600_000, "now": [{"act": "black_hole"}]}});
    assert_eq!(client.post(format!("{desk}/emulator/control")).json(&shut).send().await.unwrap().status(), 200);
    let refused = async { while TcpStream::connect(emulator.addr()).await.is_ok() {} };
    timeout(LONG, refused).await.expect("a closed door");
    let calm = client.post(format!("{desk}/emulator/control")).json(&json!({"calm": true}));
    assert_eq!(calm.send().await.unwrap().status(), 200);
    let opened = async { while TcpStream::connect(emulator.addr()).await.is_err() {} };
    timeout(LONG, opened).await.expect("an open door");
    assert_eq!(send(&connect(&emulator).await, "ok-1").await.unwrap().status, 200);
}

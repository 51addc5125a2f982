//! What the emulator makes of a request: body, path and method.

use super::*;

#[tokio::test]
async fn a_body_that_fcm_would_refuse_is_refused_with_its_field() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let cases = [
        (json!({"message": {"token": "t", "tokn": "t"}}), "400 INVALID_ARGUMENT Field=message"),
        (json!({"message": {"token": "t"}, "priority": "high"}), "400 INVALID_ARGUMENT Field="),
        (
            json!({"message": {"token": "t", "data": {"minute": 67}}}),
            "400 INVALID_ARGUMENT Field=message.data[0].value",
        ),
        (json!({"message": {"token": "t", "topic": "u"}}), "400 INVALID_ARGUMENT Field=message"),
        (json!({"message": {"data": {"a": "b"}}}), "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Field=message"),
        (
            json!({"message": {"token": "t", "data": {"a": "b".repeat(4096)}}}),
            "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Field=message.data",
        ),
    ];
    for (body, want) in &cases {
        assert_eq!(line(&post(&client, SEND, "", body.to_string().into()).await), *want, "{body}");
    }
    assert_eq!(line(&post(&client, SEND, "", "{\"message\":".into()).await), "400 INVALID_ARGUMENT Field=");
    assert_eq!(emulator.stats().answers["bad-request"], cases.len() as u64 + 1);
    assert_eq!(emulator.log()[0].token, "t", "what could be read is in the log");
}

#[tokio::test]
async fn a_dry_run_gets_a_name_and_is_not_accepted() {
    let emulator = open_to_all();
    let body = json!({"validate_only": true, "message": {"token": "ok-1"}}).to_string();
    let answer = post(&connect(&emulator).await, SEND, "", body.into()).await.unwrap();
    assert!(answer.json()["name"].is_string());
    assert_eq!((emulator.stats().requests, emulator.stats().accepted), (1, 0));
}

#[tokio::test]
async fn other_paths_and_methods_are_no_sends() {
    let emulator = open_to_all();
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    for path in ["/", "/v1/projects//messages:send", "/v1/projects/a/b/messages:send", "/emulator/nothing"] {
        let url = format!("{}{path}", emulator.endpoint());
        assert_eq!(client.post(url).body(goal("t")).send().await.unwrap().status(), 404, "{path}");
    }
    assert_eq!(client.get(format!("{}{SEND}", emulator.endpoint())).send().await.unwrap().status(), 404);
    assert_eq!(emulator.stats().requests, 0);
}

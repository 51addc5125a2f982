//! The metadata server, as clients on Google's machines see it.

use super::*;

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

async fn get(emulator: &Emulator, path: &str, flavor: Option<&str>) -> (u16, Option<String>, String) {
    let mut request = reqwest::Client::new().get(format!("{}{path}", emulator.endpoint()));
    if let Some(flavor) = flavor {
        request = request.header("Metadata-Flavor", flavor);
    }
    let answer = request.send().await.unwrap();
    let flavor = answer.headers().get("metadata-flavor").map(|value| value.to_str().unwrap().to_owned());
    (answer.status().as_u16(), flavor, answer.text().await.unwrap())
}

#[tokio::test]
async fn it_answers_those_who_know_what_it_is_and_nobody_else() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let known = [
        ("/", "computeMetadata/\n"),
        ("/computeMetadata/v1/project/project-id", "demo-project"),
        (
            "/computeMetadata/v1/instance/service-accounts/default/email",
            "emulator@demo-project.iam.gserviceaccount.com",
        ),
        ("/computeMetadata/v1/universe/universe-domain", "googleapis.com"),
    ];
    for (path, want) in known {
        let google = Some("Google".to_owned());
        assert_eq!(get(&emulator, path, Some("Google")).await, (200, google, want.to_owned()), "{path}");
        for flavor in [None, Some("google")] {
            let (status, flavor, body) = get(&emulator, path, flavor).await;
            assert_eq!((status, flavor), (403, None), "{path}: {body}");
        }
    }
    let about = get(&emulator, "/computeMetadata/v1/instance/service-accounts/default/?recursive=true", Some("Google"));
    let about: Value = serde_json::from_str(&about.await.2).unwrap();
    assert!(about["scopes"].as_array().unwrap().iter().any(|scope| scope.as_str().unwrap().ends_with("messaging")));
    for path in ["/computeMetadata/v1/nothing", "/computeMetadata/v1/instance/service-accounts/other/token"] {
        assert_eq!(get(&emulator, path, Some("Google")).await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn its_token_sends_and_is_the_same_until_near_its_end() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let token = async || {
        let (status, _, body) = get(&emulator, TOKEN, Some("Google")).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &body["token_type"]), (200, &json!("Bearer")));
        (body["access_token"].as_str().unwrap().to_owned(), body["expires_in"].as_u64().unwrap())
    };
    let (first, life_s) = token().await;
    assert!((3590..=3600).contains(&life_s), "{life_s}");
    assert_eq!(token().await.0, first);
    let client = connect(&emulator).await;
    assert_eq!(post(&client, SEND, &first, goal("ok-1")).await.unwrap().status, 200);
    let short = Control { token_lifetime_s: Some(299), revoke: true, ..Control::default() };
    emulator.control(&short).unwrap();
    let second = token().await.0;
    assert_ne!(first, second, "what is revoked is not given again");
    assert_ne!(token().await.0, second, "five minutes before its end there is a new one");
}

#[tokio::test]
async fn what_the_token_endpoint_is_told_holds_for_it_too() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let told = Control { oauth_answer: Some("unavailable".into()), oauth_times: Some(1), ..Control::default() };
    emulator.control(&told).unwrap();
    assert_eq!(get(&emulator, TOKEN, Some("Google")).await.0, 503);
    assert_eq!(get(&emulator, TOKEN, Some("Google")).await.0, 200);
    assert_eq!(emulator.stats().oauth_calls, 2);
}

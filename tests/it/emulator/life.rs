//! TLS, HTTP/1.1, and how the emulator starts and ends.

use fanfare::emulator::EmulatorError;

use super::oauth::{GRANT, assertion, key};
use super::*;

pub(super) fn trusting(emulator: &Emulator) -> reqwest::ClientBuilder {
    let authority = reqwest::Certificate::from_pem(emulator.ca_pem().unwrap().as_bytes()).unwrap();
    reqwest::Client::builder().tls_certs_only([authority])
}

#[tokio::test]
async fn over_tls_its_authority_is_needed_and_enough() {
    let emulator = started(Settings { tls: true, ..Settings::default() }, Control::default());
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("https://{host}:{}{SEND}", emulator.addr().port());
        let h2 = trusting(&emulator).build().unwrap().post(&url).body(goal("ok-1")).send().await.unwrap();
        assert_eq!((h2.status(), h2.version()), (StatusCode::OK, http::Version::HTTP_2));
        let h1 = trusting(&emulator).http1_only().build().unwrap().post(&url).body(goal("ok-1")).send().await.unwrap();
        assert_eq!((h1.status(), h1.version()), (StatusCode::OK, http::Version::HTTP_11));
    }
    assert_eq!(emulator.stats().tls_failures, 0);
    let url = format!("{}{SEND}", emulator.endpoint());
    let stranger = reqwest::Client::new().post(url).body(goal("ok-1")).send().await.unwrap_err();
    assert!(stranger.is_connect(), "{stranger:?}");
    assert_eq!(emulator.stats().requests, 4);
    let pem = trusting(&emulator).build().unwrap().get(format!("{}/emulator/ca.pem", emulator.endpoint()));
    assert_eq!(pem.send().await.unwrap().text().await.unwrap(), emulator.ca_pem().unwrap());
}

#[tokio::test]
async fn the_key_of_a_tls_emulator_points_at_its_own_token_endpoint() {
    let emulator = Emulator::start(Settings { tls: true, ..Settings::default() }).unwrap();
    let key = key(&emulator);
    let form = [("grant_type", GRANT), ("assertion", &assertion(&key, &json!({})))];
    let url = key["token_uri"].as_str().unwrap();
    let answer = trusting(&emulator).build().unwrap().post(url).form(&form).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn http_1_works_and_a_reset_closes_its_connection() {
    let emulator = open_to_all();
    let client = reqwest::Client::builder().http1_only().retry(reqwest::retry::never()).build().unwrap();
    let url = format!("{}{SEND}", emulator.endpoint());
    let answer = client.post(&url).body(goal("dead-1")).send().await.unwrap();
    assert_eq!((answer.status(), answer.version()), (StatusCode::NOT_FOUND, http::Version::HTTP_11));
    let closed = client.post(&url).body(goal("reset-1")).send().await.unwrap_err();
    assert!(closed.is_request(), "{closed:?}");
    assert_eq!(names(&emulator.log()), ["dead", "reset"]);
}

#[tokio::test]
async fn stopping_ends_connections_and_keeps_the_log() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let hanging = tokio::spawn({
        let client = client.clone();
        async move { post(&client, SEND, "", goal("hang-1")).await }
    });
    timeout(LONG, emulator.logged(1)).await.unwrap();
    timeout(LONG, emulator.stop()).await.expect("an end");
    assert!(timeout(LONG, hanging).await.unwrap().unwrap().is_err(), "the stream ends with its connection");
    assert!(TcpStream::connect(emulator.addr()).await.is_err(), "nobody listens any more");
    assert_eq!((emulator.log().len(), emulator.stats().connections_open), (1, 0));
    let streams_end = async {
        while emulator.stats().streams_open > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, streams_end).await.expect("no stream outlives its connection");
}

#[tokio::test]
async fn dropping_it_frees_the_port() {
    let emulator = open_to_all();
    let addr = emulator.addr();
    drop(emulator);
    let freed = async {
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, freed).await.expect("the port is free");
}

#[tokio::test]
async fn what_it_cannot_start_with_it_names() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let fault = |settings: Settings| Emulator::start(settings).err().unwrap();
    let cannot = fault(Settings { listen, ..Settings::default() });
    assert!(matches!(cannot, EmulatorError::Listen { addr, .. } if addr == listen), "{cannot}");
    let log_file = Some("/nowhere/at/all.ndjson".into());
    let cannot = fault(Settings { log_file, ..Settings::default() });
    assert!(cannot.to_string().contains("/nowhere/at/all.ndjson"), "{cannot}");
    let control = Control { oauth_answer: Some("sunshine".into()), ..Control::default() };
    assert!(matches!(fault(Settings { control, ..Settings::default() }), EmulatorError::UnknownAnswer(_)));
}

#[tokio::test]
async fn a_proxy_leads_here_whatever_it_is_asked_for() {
    let proxy_listen = Some("127.0.0.1:0".parse().unwrap());
    let emulator = started(Settings { tls: true, proxy_listen, ..Settings::default() }, Control::default());
    let proxy = format!("http://{}", emulator.proxy_addr().unwrap());
    let client = trusting(&emulator).proxy(reqwest::Proxy::all(&proxy).unwrap()).build().unwrap();
    let url = format!("https://fcm.googleapis.com{SEND}");
    let answer = client.post(&url).body(goal("ok-1")).send().await.unwrap();
    assert_eq!((answer.status(), answer.version()), (StatusCode::OK, http::Version::HTTP_2));
    assert_eq!(emulator.log()[0].token, "ok-1");
    let no_proxy_request = reqwest::get(format!("{proxy}/emulator/stats")).await.unwrap();
    assert_eq!(no_proxy_request.status(), 405);
    assert_eq!(emulator.stats().connections_opened, 1);
}

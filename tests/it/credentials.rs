//! Credentials as people have them, from the corpus beside; and Google Cloud's metadata server as their source.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use fanfare::domain::charge::Charge;
use fanfare::emulator::Control;
use fanfare::fcm::assertion::sign;
use fanfare::fcm::credentials::Credentials;
use fanfare::fcm::http::TokenHttp;
use fanfare::fcm::metadata;
use fanfare::fcm::oauth::{TokenState, Tokens};
use futures_util::future::join_all;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::harness::logs::logs;
use super::harness::metadata::{MetadataServer, Reply};
use super::harness::service::{Database, World};

/// Longest wait of any test for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

// --- the corpus ---

/// One case of `tests/corpus/keys`.
struct Case {
    name: String,
    text: Vec<u8>,
    /// The words of the refusal; `None` = taken.
    refused: Option<String>,
}

/// The keys that stand for the markers.
struct Keys {
    rsa: rcgen::KeyPair,
    ec: rcgen::KeyPair,
    ed25519: rcgen::KeyPair,
}

impl Keys {
    fn make() -> Self {
        let make = |algorithm| rcgen::KeyPair::generate_for(algorithm).unwrap();
        let (rsa, ec) = (make(&rcgen::PKCS_RSA_SHA256), make(&rcgen::PKCS_ECDSA_P256_SHA256));
        Self { rsa, ec, ed25519: make(&rcgen::PKCS_ED25519) }
    }

    /// A text with the markers replaced. What stands in a JSON string is escaped as JSON wants it.
    fn put_into(&self, text: &str) -> String {
        let pem = self.rsa.serialize_pem();
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        // PKCS#1 is what PKCS#8 wraps: after 26 bytes of header, for a key of this size.
        let pkcs1 = armour("RSA PRIVATE KEY", &STANDARD.encode(&self.rsa.serialize_der()[26..]));
        // Nearly all of a key is numbers without a check; its header is not.
        let changed = format!("A{}", &body[1..]);
        let json = |pem: &str| serde_json::to_string(pem).unwrap().trim_matches('"').to_owned();
        let mut text = text.to_owned();
        for (marker, key) in [
            ("@PKCS8@", json(&pem)),
            ("@PKCS8_RAW@", pem.clone()),
            ("@PKCS8_BODY@", body.clone()),
            ("@PKCS8_LITERAL@", json(&pem.replace('\n', "\\n"))),
            ("@PKCS8_LITERAL2@", json(&pem.replace('\n', "\\\\n"))),
            ("@PKCS8_CRLF@", json(&pem.replace('\n', "\r\n"))),
            ("@PKCS8_SPACES@", json(&pem.replace('\n', " "))),
            ("@PKCS8_JOINED@", json(&pem.replace('\n', ""))),
            ("@PKCS8_CUT@", json(&pem[..800])),
            ("@PKCS8_CHANGED@", json(&armour("PRIVATE KEY", &changed))),
            ("@PKCS8_MIXED@", json(&pem.replace("END PRIVATE", "END RSA PRIVATE"))),
            ("@PKCS8_AS_CERTIFICATE@", json(&armour("CERTIFICATE", &body))),
            ("@PKCS1@", json(&pkcs1)),
            ("@EC@", json(&self.ec.serialize_pem())),
            ("@ED25519@", json(&self.ed25519.serialize_pem())),
            ("@PUBLIC@", json(&self.rsa.public_key_pem())),
        ] {
            text = text.replace(marker, &key);
        }
        text
    }
}

fn armour(label: &str, body: &str) -> String {
    let lines: Vec<&str> = body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// Puts something around a text, by the name the corpus has for it.
fn wrapped(wrap: &str, text: Vec<u8>) -> Vec<u8> {
    let bytes = text.clone();
    let text = String::from_utf8(text).unwrap();
    let wrapped = match wrap {
        "bom" => format!("\u{feff}{text}"),
        "crlf" => text.replace('\n', "\r\n"),
        "spaces" => format!(" \t {text}  "),
        "newline" => format!("{text}\n"),
        "zero" => format!("{text}\0"),
        "single-quotes" => format!("'{text}'"),
        "double-quotes" => format!("\"{text}\""),
        "json-string" => serde_json::to_string(&text).unwrap(),
        "escape" => text.replace('\\', "\\\\").replace('"', "\\\""),
        "real-breaks" => text.replace("\\n", "\n"),
        "literal-breaks" => text.replace('\n', "\\n"),
        "base64" => STANDARD.encode(bytes),
        "base64-url" => URL_SAFE.encode(bytes),
        "unpadded" => text.trim_end_matches('=').to_owned(),
        "lines" => text.as_bytes().chunks(76).map(|line| format!("{}\n", std::str::from_utf8(line).unwrap())).collect(),
        "cut" => text[..text.len() / 2].to_owned(),
        "utf-16" => return [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect(),
        "latin-1" => return [bytes.as_slice(), &[0xe9]].concat(),
        other => panic!("no wrap {other:?}"),
    };
    wrapped.into_bytes()
}

fn case(path: &Path, keys: &Keys) -> Case {
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    let file = std::fs::read_to_string(path).unwrap();
    let (head, text) = file.split_once("\n---\n").unwrap_or_else(|| panic!("{name}: no ---"));
    let mut case = Case { text: keys.put_into(text.strip_suffix('\n').unwrap()).into_bytes(), refused: None, name };
    let mut expects = 0;
    for line in head.lines() {
        match line.split_once(": ").unwrap_or_else(|| panic!("{}: {line}", case.name)) {
            ("about", about) => assert!(!about.is_empty()),
            ("wrap", wraps) => {
                for wrap in wraps.split(' ') {
                    case.text = wrapped(wrap, std::mem::take(&mut case.text));
                }
            }
            ("expect", "taken") => expects += 1,
            ("expect", refused) => {
                case.refused = Some(refused.strip_prefix("refused ").unwrap().to_owned());
                expects += 1;
            }
            other => panic!("{}: {other:?}", case.name),
        }
    }
    assert_eq!(expects, 1, "{}", case.name);
    case
}

fn corpus(keys: &Keys) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/keys");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|e| e == "case")).collect();
    files.sort();
    files.iter().map(|path| case(path, keys)).collect()
}

/// Takes a case as it is given, and says what is wrong with what came of it.
fn judge(case: &Case, public: &DecodingKey, inline: &str, file: &Path) -> Option<String> {
    match (Credentials::load(inline, file), &case.refused) {
        (Ok(Credentials::Account(account)), None) => {
            let mut rules = Validation::new(Algorithm::RS256);
            rules.validate_aud = false;
            let assertion = sign(&account, SystemTime::now()).unwrap();
            let opened = jsonwebtoken::decode::<Value>(&assertion, public, &rules);
            let iss = opened.ok().and_then(|token| token.claims["iss"].as_str().map(str::to_owned));
            let right = iss.as_deref() == Some("push@demo-project.iam.gserviceaccount.com");
            (!right).then(|| "taken, but it signs as somebody else".to_owned())
        }
        (Err(error), Some(words)) => {
            let said = error.to_string();
            let text = String::from_utf8_lossy(&case.text).into_owned();
            if !said.contains(words.as_str()) {
                return Some(format!("said {said:?} instead of {words:?}"));
            }
            shared_run(&said, &text, 20).map(|run| format!("shows {run:?} of the input: {said}"))
        }
        (Err(error), None) => Some(format!("refused: {error}")),
        (Ok(other), _) => Some(format!("taken as {other:?}")),
    }
}

/// A run of letters and digits of this length that is in both. (Words of a message may well stand in a JSON too.)
fn shared_run(said: &str, text: &str, len: usize) -> Option<String> {
    let runs = said.as_bytes().windows(len).filter(|run| run.iter().all(u8::is_ascii_alphanumeric));
    let runs = runs.map(|run| String::from_utf8_lossy(run).into_owned());
    runs.into_iter().find(|run| text.contains(run))
}

#[test]
fn every_form_of_the_corpus_is_taken_or_refused_by_name_as_a_file_and_as_a_value() {
    let keys = Keys::make();
    let public = DecodingKey::from_rsa_pem(keys.rsa.public_key_pem().as_bytes()).unwrap();
    let cases = corpus(&keys);
    assert!(cases.len() >= 90, "{} cases", cases.len());
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        std::fs::write(file.path(), &case.text).unwrap();
        wrong.extend(judge(case, &public, "", file.path()).map(|what| format!("{} as a file: {what}", case.name)));
        // An empty value means that none is given.
        let empty = case.refused.as_deref() == Some("it is empty");
        if let (Ok(text), false) = (std::str::from_utf8(&case.text), empty) {
            wrong.extend(
                judge(case, &public, text, Path::new("")).map(|what| format!("{} as a value: {what}", case.name)),
            );
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn what_is_no_file_to_read_is_told_as_that() {
    let dir = tempfile::tempdir().unwrap();
    let huge = dir.path().join("huge");
    std::fs::File::create(&huge).unwrap().set_len(2 * 1024 * 1024).unwrap();
    let absent = dir.path().join("absent.json");
    for (path, words) in [
        (dir.path(), "it is a directory; name the key file in it"),
        (&*huge, "longer than 1 MiB"),
        (&*absent, "No such file"),
        (Path::new("/proc/self/mem"), "the file cannot be read"),
    ] {
        for (inline, file) in [("", path), (path.to_str().unwrap(), Path::new(""))] {
            let said = Credentials::load(inline, file).unwrap_err().to_string();
            assert!(said.starts_with("the file cannot be read: ") && said.contains(words), "{path:?}: {said}");
        }
    }
    assert!(Credentials::load("", Path::new("")).unwrap_err().to_string().contains("there are no credentials"));
    for word in ["metadata", " metadata\n", "\"metadata\""] {
        assert!(matches!(Credentials::load(word, Path::new("/nowhere")), Ok(Credentials::Metadata)), "{word}");
    }
    let quoted = format!("'{}'", absent.display());
    assert!(Credentials::load(&quoted, Path::new("")).unwrap_err().to_string().contains("No such file"));
}

// --- the metadata server, as a source of access tokens ---

#[derive(Default)]
struct Counter(AtomicUsize);

#[async_trait]
impl Charge for Counter {
    async fn charge(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A metadata server and the handle under test.
struct Bench {
    server: MetadataServer,
    tokens: Tokens,
    charged: Arc<Counter>,
}

impl Bench {
    async fn start(script: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Self {
        let server = MetadataServer::start(Some("demo-project"), script).await;
        let charged = Arc::new(Counter::default());
        let tokens = from(&server.host, Arc::clone(&charged));
        Self { server, tokens, charged }
    }

    async fn until(&self, wanted: impl FnMut(&TokenState) -> bool) -> TokenState {
        until(&self.tokens, wanted).await
    }

    async fn ready(&self, wanted: u64) {
        self.until(|s| matches!(s, TokenState::Ready { generation, .. } if *generation >= wanted)).await;
    }

    /// The first thing that is said.
    async fn first(&self) -> TokenState {
        self.until(|s| !matches!(s, TokenState::Waiting)).await
    }
}

fn from(host: &str, charged: Arc<Counter>) -> Tokens {
    let http = TokenHttp::new(None, Duration::from_secs(5)).unwrap();
    Tokens::start(metadata::MetadataServer::at(host).unwrap(), http, charged, SystemTime::now)
}

async fn until(tokens: &Tokens, wanted: impl FnMut(&TokenState) -> bool) -> TokenState {
    let mut states = tokens.subscribe();
    let found = timeout(PATIENCE, states.wait_for(wanted)).await.expect("the state never came").unwrap();
    found.clone()
}

#[tokio::test]
async fn a_hundred_who_need_a_token_cause_one_charged_request_of_the_metadata_server_however_slow_it_is() {
    let slow = |n| Reply { after: Duration::from_millis(700), ..Reply::token(&format!("ya29.c.{n}"), 3599.0) };
    let bench = Bench::start(slow).await;
    join_all((0..100).map(|_| bench.ready(1))).await;
    assert_eq!(bench.charged.0.load(Ordering::SeqCst), 1);
    let asked = bench.server.asked();
    let path = "/computeMetadata/v1/instance/service-accounts/default/token?scopes=https://www.googleapis.com/auth/firebase.messaging";
    assert_eq!(asked, [path]);
}

#[tokio::test]
async fn a_token_near_its_end_is_served_and_replaced_without_a_storm() {
    // As the real one does: the same token until shortly before its end, and only then another.
    let bench = Bench::start(|n| match n {
        0..=2 => Reply::token("ya29.c.old", 0.5),
        _ => Reply::token("ya29.c.new", 3599.0),
    })
    .await;
    let begun = Instant::now();
    bench.ready(4).await;
    assert!(begun.elapsed() >= Duration::from_secs(3), "asked at most once a second: {:?}", begun.elapsed());
    assert_eq!(bench.server.tokens_asked(), 4);
}

#[tokio::test]
async fn a_rejected_token_that_comes_again_is_not_asked_for_in_a_loop() {
    let bench = Bench::start(|_| Reply::token("ya29.c.cached", 3599.0)).await;
    bench.ready(1).await;
    bench.tokens.reject(1);
    bench.ready(2).await;
    bench.tokens.reject(2);
    let mut states = bench.tokens.subscribe();
    states.mark_unchanged();
    assert!(timeout(Duration::from_millis(700), states.changed()).await.is_err());
    assert_eq!(bench.server.tokens_asked(), 2);
}

#[tokio::test]
async fn every_fault_of_the_metadata_server_is_told_apart() {
    let refused = |state: &TokenState| matches!(state, TokenState::Refused { .. });
    let away = |state: &TokenState| matches!(state, TokenState::Unavailable { .. });
    type Case = (Reply, fn(&TokenState) -> bool, &'static str);
    let other = |flavor| Reply { flavor, ..Reply::token("ya29.c.x", 3599.0) };
    let throttled = Reply { retry_after: Some("20"), ..Reply::error(429, "") };
    let at_once = Reply { retry_after: Some("0"), ..Reply::error(429, "") };
    let cases: Vec<Case> = vec![
        (Reply::error(404, "<html>secret</html>"), refused, "no service account here (404)"),
        (Reply::error(403, "secret"), refused, "refused us: 403"),
        (Reply::error(400, "secret"), refused, "refused us: 400"),
        (Reply::error(500, "<html>secret</html>"), away, "500"),
        (Reply { flavor: None, ..Reply::error(503, "secret") }, away, "503"),
        (Reply::error(302, "secret"), away, "302"),
        (other(None), away, "not Google's server"),
        (other(Some("Azure")), away, "not Google's server"),
        (Reply { flavor: None, ..Reply::error(404, "secret") }, away, "404 without Metadata-Flavor"),
        (Reply::error(200, "<html>secret</html>"), away, "200"),
        (Reply::token("ya29.c.x", 0.0), away, "expires_in"),
        (Reply::token("ya29.c.x", -5.0), away, "expires_in"),
        (Reply::token("", 3599.0), away, "access_token"),
        (throttled, away, "wait 20 s"),
        (at_once, away, "wait 1 s"),
    ];
    join_all(cases.into_iter().map(async |(reply, kind, words)| {
        let answer = reply.clone();
        let bench = Bench::start(move |_| answer.clone()).await;
        let state = bench.first().await;
        assert!(kind(&state), "{reply:?}: {state:?}");
        let (TokenState::Refused { reason } | TokenState::Unavailable { reason }) = state else { unreachable!() };
        assert!(reason.contains(words) && !reason.contains("secret"), "{reply:?}: {reason}");
        assert_eq!(bench.server.tokens_asked(), 1);
    }))
    .await;
}

#[tokio::test]
async fn a_metadata_server_that_comes_up_late_is_asked_again() {
    let bench = Bench::start(|n| if n < 2 { Reply::error(500, "") } else { Reply::token("ya29.c.x", 3599.0) }).await;
    bench.until(|s| matches!(s, TokenState::Unavailable { .. })).await;
    bench.ready(1).await;
    assert_eq!((bench.server.tokens_asked(), bench.charged.0.load(Ordering::SeqCst)), (3, 3));
    let nowhere = from("127.0.0.1:1", Arc::default());
    let state = until(&nowhere, |s| !matches!(s, TokenState::Waiting)).await;
    let TokenState::Unavailable { reason } = state else { panic!("{state:?}") };
    assert!(reason.contains("it exists on Google Cloud only"), "{reason}");
}

// --- the service with it ---

/// A world without a key, on a metadata server.
async fn on_google_cloud(project: Option<&str>) -> (World, MetadataServer) {
    let mut world = World::new(Database::Sqlite, false).await;
    // Its access tokens are not the emulator's own.
    world.emulate(Control { check_auth: Some(false), ..Control::default() });
    let server = MetadataServer::start(project, |n| Reply::token(&format!("ya29.c.{n}"), 3599.0)).await;
    world.set("FCM__CREDENTIALS", "metadata");
    world.settings.insert("GCE_METADATA_HOST".to_owned(), server.host.clone());
    (world, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_goal_goes_out_with_nothing_but_the_metadata_server() {
    let (world, server) = on_google_cloud(Some("demo-project")).await;
    let service = world.spawn().await;
    service.follow("meta", &["ok-meta-0".to_owned(), "ok-meta-1".to_owned()]).await;
    let fanout = service.settled(&service.goal("meta", "meta", 60).await).await;
    assert_eq!((fanout.delivered, fanout.failed), (2, 0), "{fanout:#?}");
    assert_eq!((server.tokens_asked(), server.asked().len()), (1, 2), "{:?}", server.asked());
    let project = service.said("project");
    assert_eq!(
        (project[0]["project_id"].as_str(), project[0]["origin"].as_str()),
        (Some("demo-project"), Some("metadata server"))
    );
    assert_eq!(world.emulator.stats().oauth_calls, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_project_the_start_waits_a_moment_and_then_names_the_setting() {
    let (mut world, server) = on_google_cloud(None).await;
    let ended = world.run("serve").await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(
        ended.err.contains("names no project: status 404") && ended.err.contains("set fcm.project_id"),
        "{}",
        ended.err
    );
    assert_eq!(ended.out.matches("no project id yet").count(), 3, "not in silence: {}", ended.out);
    let running = tokio::spawn({
        let command = world.command("serve").spawn().unwrap();
        async move { command }
    });
    server.name_project("Not A Project");
    let child = running.await.unwrap();
    let output = timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("metadata server") && said.contains("set fcm.project_id"), "{said}");

    world.set("FCM__PROJECT_ID", "demo-project");
    let before = server.asked().len();
    drop(world.spawn().await);
    let asked = server.asked().split_off(before);
    assert!(asked.iter().all(|path| path.contains("/token")), "a project that is set is not asked for: {asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_set_otherwise_than_in_the_key_wins_and_is_warned_of() {
    logs();
    let mut world = World::new(Database::Sqlite, false).await;
    world.set("FCM__PROJECT_ID", "another-project");
    let service = world.spawn().await;
    let project = &service.said("project")[0];
    assert_eq!((&project["project_id"], &project["origin"]), (&"another-project".into(), &"fcm.project_id".into()));
    let warning = &service.said("the key is of another project")[0];
    assert_eq!((&warning["level"], &warning["key_project_id"]), (&"WARN".into(), &"demo-project".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_the_variable_for_its_path_serves_and_is_shown_nowhere() {
    let mut world = World::new(Database::Sqlite, false).await;
    let key = world.settings.remove("FANFARE__FCM__CREDENTIALS").unwrap();
    world.settings.insert("GOOGLE_APPLICATION_CREDENTIALS".to_owned(), STANDARD.encode(&key));
    let service = world.spawn().await;
    assert_eq!(service.said("project")[0]["origin"], "key");
    let mut command = world.command("config");
    let output = command.arg("print").output().await.unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("credentials = \"(set, hidden)\""), "{printed}");
    assert_eq!(shared_run(&printed, &STANDARD.encode(&key), 20), None);
}

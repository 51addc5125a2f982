//! Many devices in and out through the API and the command line: the corpus of files, any bytes at all, the round trip,
//! what breaks off in the middle. The same on both databases.

#![allow(clippy::unwrap_used)] // the switch for tests does not reach what tests share

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use bytes::Bytes;
use fanfare::api;
use fanfare::domain::ids::DeviceKey;
use fanfare::door;
use fanfare::store::postgres::PostgresStore;
use fanfare::store::sqlite::SqliteStore;
use fanfare::store::{DevicePage, Store};
use fanfare::wire::{Format, ImportAnswer, Problem};
use futures_util::{TryStreamExt, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::api::{Service, for_each_store, refused, until};
use crate::harness::postgres::TestDatabase;

/// Both databases behind a service each.
async fn on_both(test: impl AsyncFn(&Service, &Service)) {
    let dir = tempfile::tempdir().unwrap();
    let database = TestDatabase::create().await;
    let sqlite: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir.path().join("fanfare.db")).await.unwrap());
    let postgres: Arc<dyn Store> = Arc::new(PostgresStore::connect(&database.url.clone().into(), 8).unwrap());
    for store in [&sqlite, &postgres] {
        store.migrate().await.unwrap();
    }
    test(&Service::start(&sqlite).await, &Service::start(&postgres).await).await;
    sqlite.close().await;
    postgres.close().await;
}

impl Service {
    async fn upload(&self, query: &str, format: Format, body: impl Into<reqwest::Body>) -> Response {
        let url = format!("http://{}/v1/devices/import{query}", self.addr);
        let request = reqwest::Client::new().post(url).bearer_auth(self.key("devices"));
        request.header("content-type", format.content_type()).body(body).send().await.unwrap()
    }

    /// The answer to an upload, whether it was taken or refused.
    async fn account(&self, format: Format, body: impl Into<reqwest::Body>) -> (u16, Option<String>, ImportAnswer) {
        let response = self.upload("", format, body).await;
        let status = response.status().as_u16();
        if response.status().is_success() {
            return (status, None, response.json().await.unwrap());
        }
        let text = response.text().await.unwrap();
        let problem: Problem = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status} {text}"));
        (status, Some(problem.code), *problem.import.unwrap_or_else(|| panic!("{status} {text}")))
    }

    async fn download(&self, query: &str) -> String {
        let response = self.get(&format!("/v1/devices/export{query}")).await;
        assert_eq!(response.status(), StatusCode::OK);
        response.text().await.unwrap()
    }

    async fn clear(&self) {
        let store = &self.state.store;
        loop {
            let page = DevicePage { after: DeviceKey(0), limit: 1000, state: None };
            let page = store.device_page(page).await.unwrap();
            if page.is_empty() {
                return;
            }
            for view in page {
                store.delete_device(view.device.id).await.unwrap();
            }
        }
    }
}

// --- the corpus ---

fn corpus() -> Vec<(PathBuf, Format)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/import");
    let format = |path: &Path| Format::parse(path.extension()?.to_str()?);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter_map(|path| Some((path.clone(), format(&path)?))).collect();
    files.retain(|(path, _)| !path.ends_with("before.ndjson"));
    files.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(files.len() > 50, "the corpus was not found");
    files
}

/// `FANFARE_TEST_CORPUS=write` writes the answers anew, to be read in the diff.
#[tokio::test]
async fn every_file_of_the_corpus_has_its_answer_on_both_databases() {
    let before = include_bytes!("../corpus/import/before.ndjson").as_slice();
    let write = std::env::var("FANFARE_TEST_CORPUS").is_ok_and(|mode| mode == "write");
    on_both(async |sqlite, postgres| {
        let mut wrong = Vec::new();
        for (file, format) in corpus() {
            let bytes = std::fs::read(&file).unwrap();
            let mut seen = Vec::new();
            for service in [sqlite, postgres] {
                service.clear().await;
                assert_eq!(service.account(Format::Ndjson, before).await.2.imported, 4);
                let (status, code, answer) = service.account(format, bytes.clone()).await;
                // What is there afterwards says more than counts.
                let devices: Vec<String> = service.download("?format=csv").await.lines().map(str::to_owned).collect();
                seen.push(json!({"status": status, "code": code, "answer": answer, "devices": devices}));
            }
            assert_eq!(seen[0], seen[1], "{} on SQLite and on Postgres", file.display());
            let expected = PathBuf::from(format!("{}.expected.json", file.display()));
            if write {
                std::fs::write(&expected, format!("{:#}\n", seen[0])).unwrap();
            }
            let text = std::fs::read_to_string(&expected).unwrap_or_default();
            if serde_json::from_str::<Value>(&text).ok().as_ref() != Some(&seen[0]) {
                wrong.push(format!("{}: {:#}", file.display(), seen[0]));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    })
    .await;
}

// --- any bytes ---

/// Cases of a property that goes through the whole service; `PROPTEST_CASES` asks for more.
fn cases(few: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

fn samples<T>(strategy: impl Strategy<Value = T>, few: u32) -> Vec<T> {
    let mut runner = TestRunner::new(Config::default());
    (0..cases(few)).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// A file of the corpus with some bytes changed, or no file at all.
fn damaged() -> impl Strategy<Value = (Format, Vec<u8>)> {
    let files: Vec<_> = corpus().into_iter().map(|(path, format)| (format, std::fs::read(path).unwrap())).collect();
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6);
    let changed = (prop::sample::select(files), changes).prop_map(|((format, mut bytes), changes)| {
        for (at, byte, how) in changes {
            let at = at.index(bytes.len() + 1);
            match how {
                0 => bytes.insert(at, byte),
                1 => bytes.truncate(at.max(1)),
                _ => bytes.get_mut(at).into_iter().for_each(|old| *old = byte),
            }
        }
        (format, bytes)
    });
    let format = prop_oneof![Just(Format::Ndjson), Just(Format::Csv)];
    let header = prop_oneof![Just(&b""[..]), Just(&b"id,user_id,token,platform,follows\n"[..])];
    let any = (format, header, proptest::collection::vec(any::<u8>(), 0..300))
        .prop_map(|(format, header, bytes)| (format, [header, &bytes].concat()));
    prop_oneof![3 => changed, 1 => any]
}

#[tokio::test]
async fn no_bytes_are_a_fault_of_ours_and_both_databases_answer_alike() {
    let samples = samples((damaged(), any::<prop::sample::Index>()), 80);
    on_both(async |sqlite, postgres| {
        for ((format, bytes), cut) in &samples {
            // Cut in two anywhere.
            let (begin, end) = bytes.split_at(cut.index(bytes.len() + 1));
            let pieces = || {
                let pieces = [begin, end].map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece)));
                let frames = stream::iter(pieces).map_ok(Frame::data);
                reqwest::Body::wrap(StreamBody::new(frames))
            };
            let answer = sqlite.account(*format, pieces()).await;
            assert!(matches!(answer.0, 200 | 422), "{answer:?} to {:?}", String::from_utf8_lossy(bytes));
            let (_, _, account) = &answer;
            assert_eq!(account.rejected_total, account.rejected_by_code.values().sum::<u64>());
            assert_eq!(answer.0 == 200, answer.1.is_none());
            assert_eq!(answer, postgres.account(*format, pieces()).await, "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(sqlite.download("").await, postgres.download("").await);
    })
    .await;
}

// --- the round trip ---

fn follows() -> impl Strategy<Value = Value> {
    let subject = prop_oneof!["team:[!-~]{1,8}", "match:[0-9]{1,4}", "player:[a-zéü=|%,\"]{1,6}"];
    let types = proptest::sample::subsequence(vec!["goal", "corner", "full_time"], 0..=3);
    let entry = (subject, types).prop_map(|(subject, types)| match types.is_empty() {
        true => json!(subject),
        false => json!({ "subject": subject, "types": types }),
    });
    proptest::collection::vec(entry, 0..5).prop_map(Value::from)
}

fn a_device() -> impl Strategy<Value = Value> {
    let state = prop::sample::select(vec!["live", "live", "live", "tombstoned", "suspended"]);
    let muted = proptest::sample::subsequence(vec!["goal", "corner"], 0..=2);
    let names = ("[!-~é]{1,12}", "[!-~]{1,12}", "[!-~]{1,30}", any::<bool>());
    let rest = (prop::sample::select(vec!["ios", "android", "web"]), "[a-z]{2}(-[A-Z]{2})?");
    (names, rest, follows(), muted, state).prop_map(|((id, user, address, fid), (platform, locale), follows, muted, state)| {
        let mut device = json!({"id": id, "user_id": user, "platform": platform, "locale": locale, "follows": follows,
                                "muted": muted, "state": state});
        device[if fid { "fid" } else { "token" }] = json!(address);
        device
    })
}

#[tokio::test]
async fn what_is_exported_is_imported_to_the_same_state_on_any_database() {
    let devices = samples(a_device(), 300);
    let text: String = devices.iter().map(|device| format!("{device}\n")).collect();
    on_both(async |sqlite, postgres| {
        let (_, _, first) = sqlite.account(Format::Ndjson, text.clone()).await;
        assert!(first.imported > 200, "{first:?}");
        let original =
            BTreeMap::from([("ndjson", sqlite.download("").await), ("csv", sqlite.download("?format=csv").await)]);
        let n = original["ndjson"].lines().count() as u64 - 1;
        for (name, file) in &original {
            let format = Format::parse(name).unwrap();
            assert_eq!(file.lines().last().map(|line| format.read_end(line)), Some(Some(n)));
            // Into a database of the other kind, and once more over itself.
            postgres.clear().await;
            for (imported, updated) in [(n, 0), (0, n)] {
                let (status, _, answer) = postgres.account(format, file.clone()).await;
                assert_eq!(
                    (status, answer.imported, answer.updated),
                    (200, imported, updated),
                    "{:?}",
                    answer.rejected
                );
                assert_eq!((answer.moved, answer.revived), (0, 0));
                assert_eq!(&postgres.download(&format!("?format={name}")).await, file);
            }
        }
        // And back.
        sqlite.clear().await;
        sqlite.account(Format::Csv, original["csv"].clone()).await;
        assert_eq!(sqlite.download("").await, original["ndjson"]);
    })
    .await;
}

// --- export ---

fn line(n: usize, filler: usize) -> String {
    let token = format!("tok-{n}-{}", "x".repeat(filler));
    json!({"id": format!("d{n}"), "user_id": "u", "token": token, "platform": "ios", "follows": ["team:ars"]})
        .to_string()
        + "\n"
}

fn lines(range: std::ops::Range<usize>, filler: usize) -> String {
    range.map(|n| line(n, filler)).collect()
}

#[tokio::test]
async fn an_export_is_asked_for_by_format_and_state() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        assert_eq!(service.download("").await, "{\"end\":0}\n");
        service.account(Format::Ndjson, lines(0..2_500, 0)).await;
        assert_eq!(service.download("?format=ndjson").await.lines().count(), 2_501);
        let csv = service.download("?format=csv&state=live").await;
        assert!(csv.starts_with(
            "id,user_id,token,fid,platform,locale,state,follows,muted\nd0,u,tok-0-,,ios,en,live,team:ars,\n"
        ));
        assert!(csv.ends_with("\n#end,2500\n"));
        assert_eq!(service.download("?state=suspended").await, "{\"end\":0}\n");
        let request = reqwest::Client::new().get(format!("http://{}/v1/devices/export", service.addr));
        let asked =
            request.bearer_auth(service.key("devices")).header("accept", "text/csv, */*;q=0.1").send().await.unwrap();
        assert_eq!(asked.headers()["content-type"], "text/csv; charset=utf-8");
        for (query, field) in [("?format=xml", "format"), ("?state=dead", "state"), ("?page=2", "page")] {
            let problem = refused(service.get(&format!("/v1/devices/export{query}")).await, 422, "invalid").await;
            assert_eq!(problem.errors[0].field, field);
        }
        store.close().await;
        refused(service.get("/v1/devices/export").await, 503, "database_unavailable").await;
    })
    .await;
}

#[tokio::test]
async fn exports_have_few_places_and_one_that_loses_its_database_does_not_end_properly() {
    for_each_store(async |store| {
        let two = |state: &mut api::State| state.limits.places.bulk = 2;
        let service = Service::start_with(&store, two, door::Limits::default()).await;
        // More than the sockets between the two take in.
        service.account(Format::Ndjson, lines(0..3_500, 4_000)).await;
        let running = [service.get("/v1/devices/export").await, service.get("/v1/devices/export").await];
        refused(service.get("/v1/devices/export").await, 503, "overloaded").await;
        assert_eq!(service.get("/v1/ceiling").await.status(), 200, "small calls go on");
        // An export whose reader goes away gives its place back.
        let [mut response, other] = running;
        drop(other);
        until(async || service.get("/v1/devices/export").await.status() == StatusCode::OK).await;
        let mut text = response.chunk().await.unwrap().unwrap().to_vec();
        store.close().await;
        let broke = loop {
            match response.chunk().await {
                Ok(Some(piece)) => text.extend_from_slice(&piece),
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        assert!(broke, "{} bytes and a proper end", text.len());
        assert!(!String::from_utf8_lossy(&text).contains("\"end\""));
    })
    .await;
}

// --- registration and revival ---

#[tokio::test]
async fn whoever_loses_its_token_is_named_and_the_dead_wake_only_when_asked() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let device = |token: &str| json!({"user_id": "u", "token": token, "platform": "ios"});
        let put = async |id: &str, token: &str| -> Value {
            let path = format!("/v1/devices/{id}");
            service.call(reqwest::Method::PUT, &path, device(token)).await.json().await.unwrap()
        };
        assert_eq!(put("old", "t").await, json!({"id": "old", "created": true, "revived": false}));
        assert_eq!(put("new", "t").await["moved_from"], "old");
        let late = service.call(reqwest::Method::DELETE, "/v1/devices/old", Value::Null).await;
        assert_eq!(late.status(), StatusCode::NO_CONTENT);
        assert_eq!(service.get("/v1/devices/new").await.status(), StatusCode::OK);

        let dead = "id,user_id,token,platform,state\nd,u,tok,ios,tombstoned\n";
        assert_eq!(service.account(Format::Csv, dead).await.2.imported, 1);
        let wake = "id,user_id,token,platform\nd,u,tok,ios\n";
        let (status, code, answer) = service.account(Format::Csv, wake).await;
        assert_eq!(
            (status, code.as_deref(), answer.rejected[0].code.as_str()),
            (422, Some("nothing_imported"), "tombstoned")
        );
        let woken: ImportAnswer = service.upload("?revive=true", Format::Csv, wake).await.json().await.unwrap();
        assert_eq!((woken.updated, woken.revived), (1, 1));
        refused(service.upload("?revive=yes", Format::Csv, wake).await, 422, "invalid").await;
    })
    .await;
}

// --- the command line, as a process ---

struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Service {
    fn command(&self, args: &[&str], place: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fanfare"));
        command.args(args).env_clear().current_dir(place).kill_on_drop(true);
        command.env("FANFARE_URL", format!("http://{}", self.addr)).env("FANFARE_KEY", self.key("devices"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    async fn run(&self, args: &[&str], place: &Path) -> Run {
        ended(self.command(args, place).stdin(Stdio::null()).output().await.unwrap())
    }
}

fn ended(output: std::process::Output) -> Run {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[tokio::test]
async fn the_command_line_imports_csv_exports_it_and_says_what_was_wrong() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let csv =
            "id,user_id,token,platform,follows,team\nd1,u,t1,ios,team:ars=goal,x\nd2,u,t 2,ios,,x\nd3,u,\"t3,ios,,x\n";
        std::fs::write(place.join("devices.csv"), csv).unwrap();
        let run = service.run(&["devices", "import", "devices.csv"], place).await;
        assert_eq!(run.code, Some(1), "{}", run.err);
        let lines: Vec<&str> = run.out.lines().collect();
        assert_eq!(lines[0], "1 imported, 0 updated, 2 rejected");
        assert!(
            lines[1].ends_with("team") && run.out.contains("  1 x bad_csv\n  1 x invalid\n  line 3: invalid: /token")
        );
        assert!(run.err.contains("2 lines were rejected; the others are kept"), "{}", run.err);

        let export = service.run(&["devices", "export", "-o", "all.csv"], place).await;
        assert_eq!((export.code, export.err.as_str()), (Some(0), "1 device exported\n"));
        let text = std::fs::read_to_string(place.join("all.csv")).unwrap();
        assert_eq!(text, service.download("?format=csv").await);
        let again = service.run(&["devices", "export", "-o", "all.csv"], place).await;
        assert!(again.code == Some(1) && again.err.contains("--force"), "{}", again.err);
        let forced = service.run(&["devices", "export", "-o", "all.csv", "--force", "--json"], place).await;
        assert_eq!(serde_json::from_str::<Value>(&forced.out).unwrap()["devices"], 1);
        let piped = service.run(&["devices", "export"], place).await;
        assert_eq!((piped.code, piped.out), (Some(0), service.download("").await));

        for (name, content, says) in [
            ("empty.csv", "", "empty.csv: there is no device in it"),
            ("none.csv", "id,user_id,token,platform\nd1,u,t 1,ios\n", "nothing was imported"),
            ("list.json", "[\n]", "jq -c '.[]' FILE"),
            ("short.csv", "id,token\n", "lacks the column user_id, platform"),
        ] {
            std::fs::write(place.join(name), content).unwrap();
            let run = service.run(&["devices", "import", name], place).await;
            assert!(run.code == Some(1) && run.err.contains(says), "{name}: {}{}", run.out, run.err);
        }
    })
    .await;
}

#[tokio::test]
async fn an_import_whose_service_goes_away_says_how_to_go_on() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let place = tempfile::tempdir().unwrap();
        let mut child = service.command(&["devices", "import", "-"], place.path()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // A part is 4 MiB: the first of them is kept before the database is lost.
        input.write_all(lines(0..1_500, 3_500).as_bytes()).await.unwrap();
        let id = || fanfare::domain::ids::DeviceId::parse("d1000").unwrap();
        until(async || store.device(id()).await.unwrap().is_some()).await;
        store.close().await;
        // The command may have given up already.
        let _ = input.write_all(lines(1_500..3_000, 3_500).as_bytes()).await;
        drop(input);
        let run = ended(child.wait_with_output().await.unwrap());
        assert_eq!(run.code, Some(69), "{}{}", run.out, run.err);
        let kept = run.err.split("lines up to ").nth(1).unwrap_or_else(|| panic!("{}", run.err));
        let kept: u64 = kept.split(' ').next().unwrap().parse().unwrap();
        assert!(kept >= 1_000 && run.err.contains(&format!("import --from-line {} -", kept + 1)), "{}", run.err);
    })
    .await;
}

#[tokio::test]
async fn an_import_goes_on_from_a_line() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let place = tempfile::tempdir().unwrap();
        let csv = "\nid,user_id,token,platform\nd1,u,t1,ios\nd2,u,t2,ios\nd3,u,t 3,ios\nd4,u,t4,ios\n";
        std::fs::write(place.path().join("devices.csv"), csv).unwrap();
        let args = ["devices", "import", "devices.csv", "--from-line", "4", "--json"];
        let run = service.run(&args, place.path()).await;
        let answer: ImportAnswer = serde_json::from_str(&run.out).unwrap();
        assert_eq!((answer.imported, answer.rejected[0].line, answer.kept_through), (2, 5, 6));
        assert_eq!(service.get("/v1/devices/d1").await.status(), StatusCode::NOT_FOUND);
        let beyond = service.run(&["devices", "import", "devices.csv", "--from-line", "7"], place.path()).await;
        assert!(beyond.code == Some(1) && beyond.err.contains("devices.csv has 6 lines"), "{}", beyond.err);
        store.close().await;
        let run = service.run(&args, place.path()).await;
        let again =
            "not known; it is safe to run the same command again: fanfare devices import --from-line 4 devices.csv";
        assert!(run.code == Some(69) && run.err.contains(again), "{}", run.err);
    })
    .await;
}

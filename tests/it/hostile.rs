//! Hostile provider text, from the wire to every place where somebody could read it: rows, API, log, metrics, readiness.

use fanfare::client::ListQuery;
use fanfare::emulator::{Control, answers};
use sqlx::{Connection, PgConnection};

use super::harness::process::Process;
use super::harness::service::{Database, World, device_id};
use super::harness::together::together;

/// What the emulator's hostile answers hold and nobody may see, but for the device token.
const NEVER: &[&str] = &[
    "evil.example",
    "AIzaSyD",
    "/srv/hostile",
    "secret.pem",
    "C:\\hostile",
    "\u{1b}",
    "\u{202e}",
    "\u{202c}",
    "\u{2066}",
    "\u{2069}",
    "\u{200b}",
];

/// The device token in them. No eight characters of it in a row may be seen: a piece of a secret is a secret.
const TOKEN: &str = "dQw4w9WgXcQ_hostile1:APA91bHPRgkF3JUikC4ENAHEeMrd41Zxv3hVZjC9KtT8OvPVGJ-hQMRKRrZuJAEcl7B338qju59zJMjw2DELjzEvxwYv7hH5Ynpc1ODQ0aT4U4";

#[track_caller]
fn clean(place: &str, text: &str) {
    for never in NEVER {
        assert!(!text.contains(never), "{never:?} in {place}: {text}");
    }
    for start in 0..TOKEN.len() - 8 {
        let piece = &TOKEN[start..start + 8];
        assert!(!text.contains(piece), "a piece of the device token in {place}: {text}");
    }
}

/// Everything a process has logged, each line as its JSON says it: what is escaped there is itself here.
fn logged(service: &Process) -> Vec<String> {
    fn texts(value: &serde_json::Value, into: &mut Vec<String>) {
        match value {
            serde_json::Value::String(text) => into.push(text.clone()),
            serde_json::Value::Array(all) => all.iter().for_each(|one| texts(one, into)),
            serde_json::Value::Object(all) => all.values().for_each(|one| texts(one, into)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    service.lines().iter().for_each(|line| texts(line, &mut all));
    all
}

async fn get(url: &str) -> String {
    reqwest::get(url).await.unwrap().text().await.unwrap()
}

/// All of the database as text; of SQLite the bytes of its files, free pages included.
async fn database(world: &World, database: Database) -> String {
    let url = &world.settings["FANFARE__DATABASE__URL"];
    if database == Database::Postgres {
        let mut beside = PgConnection::connect(url).await.unwrap();
        let all = "SELECT coalesce(string_agg(t::text, chr(10)), '') FROM (SELECT x::text AS t FROM failure x
            UNION ALL SELECT x::text FROM fanout x UNION ALL SELECT x::text FROM fanout_part x
            UNION ALL SELECT x::text FROM chunk x UNION ALL SELECT x::text FROM event x) AS rows";
        return sqlx::query_scalar(all).fetch_one(&mut beside).await.unwrap();
    }
    let path = url.strip_prefix("sqlite:").unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    bytes.extend(std::fs::read(format!("{path}-wal")).unwrap_or_default());
    // Its own bytes may be any; the characters that are looked for need more than one of them, or stand in text only.
    String::from_utf8_lossy(&bytes).replace('\u{1b}', "")
}

async fn hostile(kind: Database, run: &'static str) {
    let mut world = World::new(kind, false).await;
    world.set("LOG__FILTER", "info,fanfare=trace");
    world.set("FCM__SLOTS", 8);
    let mut service = world.spawn().await;
    let named = |name: &str| name.starts_with("hostile") || name.starts_with("big") || name.contains("html");
    let odd: Vec<&str> =
        answers().map(|(name, _)| name).filter(|name| named(name) && !name.starts_with("quota")).collect();
    assert!(odd.iter().filter(|name| name.starts_with("hostile")).count() >= 5, "{odd:?}");
    let accepted = (0..90).map(|i| format!("ok-{run}-{i}"));
    service.follow(run, &odd.iter().map(|name| format!("{name}-{run}")).chain(accepted).collect::<Vec<_>>()).await;
    let fanout = service.settled(&service.goal(run, run, 6).await).await;
    assert_eq!(fanout.recipients, 90 + odd.len() as u64);

    let mut told = 0;
    for (i, name) in odd.iter().enumerate() {
        let explained = service.client.explain(&fanout.id, &device_id(run, i)).await.unwrap();
        let text = serde_json::to_string(&explained).unwrap();
        let shown = explained.provider_text.unwrap_or_default();
        clean(name, &shown);
        clean(name, &text);
        assert!(shown.len() <= 256, "{name}: {} bytes", shown.len());
        told += usize::from(shown.contains("INVALID_ARGUMENT") || shown.starts_with("503"));
    }
    assert!(told >= 3, "what is harmless is told all the same");
    let listed = service.client.fanouts(&ListQuery::default()).await.unwrap();
    clean("the list", &serde_json::to_string(&listed).unwrap());

    // The token endpoint refuses in the same words, and all there is to send with is worthless.
    world.emulate(Control { oauth_answer: Some("grant-hostile".into()), revoke: true, ..Control::default() });
    service.terminate().await;
    service.ended().await;
    let before = logged(&service);
    let dirty = database(&world, kind).await;
    service = world.spawn().await;
    service.says(1, |line| line["message"] == "no new access token").await;
    let verbose = get(&format!("{}/readyz?verbose", service.ops)).await;
    assert!(verbose.contains("invalid_grant"), "what is wrong is told all the same: {verbose}");
    clean("/readyz", &verbose);
    clean("/metrics", &get(&format!("{}/metrics", service.ops)).await);
    for line in before.into_iter().chain(logged(&service)) {
        clean("the log", &line);
    }
    clean("the database", &dirty);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hostile_text_is_seen_nowhere() {
    together(vec![
        ("SQLite", Box::pin(hostile(Database::Sqlite, "hostile-sqlite"))),
        ("Postgres", Box::pin(hostile(Database::Postgres, "hostile-pg"))),
    ])
    .await;
}

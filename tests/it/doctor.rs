//! `fanfare doctor` against real databases, Redis and the emulator, well and with one thing wrong at a time: each demands
//! the line and the exit code, and that the other checks were made all the same.

use fanfare::app::doctor::diagnose;
use fanfare::emulator::{Control, Rule, Settings};
use fanfare::inspect::doctor::{Finding, Grade, Trouble, conclude};
use serde_json::Value;

use super::harness::redis::RedisServer;
use super::harness::service::{Database, World};

/// The checks on a PostgreSQL, in their order.
const CHECKS: [&str; 15] = [
    "configuration",
    "types",
    "keys",
    "quota",
    "database",
    "migrations",
    "connections",
    "redis",
    "clock",
    "credentials",
    "token",
    "streams",
    "permission",
    "open files",
    "grants",
];

/// A device token as the check makes it up.
const MADE_UP: &str = "fanfare-doctor";

struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Run {
    /// The one line of a check.
    #[track_caller]
    fn line(&self, check: &str) -> &str {
        let of = |line: &&str| line.get(6..).is_some_and(|rest| rest.starts_with(&format!("{check:<13}  ")));
        let mut lines = self.out.lines().filter(of);
        let line = lines.next().unwrap_or_else(|| panic!("no line of {check}: {}", self.out));
        assert_eq!(lines.next(), None, "{}", self.out);
        line
    }

    /// Demands a failure of this check with these words, and of no other.
    #[track_caller]
    fn fails_only(&self, code: i32, check: &str, words: &[&str]) {
        let line = self.line(check);
        assert!(line.starts_with("fail  ") && words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
        let failed = self.out.lines().filter(|line| line.starts_with("fail")).count();
        assert_eq!((self.code, failed), (Some(code), 1), "{}{}", self.out, self.err);
        assert!(self.err.contains(&format!("1 of 15 checks failed: {check}")), "{}", self.err);
    }
}

async fn run(world: &World, args: &[&str]) -> Run {
    let output = world.command("doctor").args(args).output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// The findings without a process in between.
async fn found(world: &World) -> Vec<Finding> {
    diagnose(None, &world.settings, true).await
}

#[track_caller]
fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("{check}: {findings:#?}"))
}

fn rule(answer: &str) -> Control {
    let rules = vec![Rule { prefix: MADE_UP.into(), answer: answer.into(), ..Rule::default() }];
    Control { rules, ..Control::default() }
}

#[tokio::test]
async fn a_fleet_that_is_well_passes_and_two_requests_were_charged_to_its_ceiling() {
    let world = World::new(Database::Postgres, true).await;
    let run = run(&world, &[]).await;
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{}", run.out);
    let names: Vec<&str> = run.out.lines().map(|line| line[6..19].trim_end()).collect();
    assert_eq!(names, CHECKS, "{}", run.out);
    assert!(!run.out.contains("fail "), "{}", run.out);
    assert!(run.line("migrations").starts_with("ok ") && run.line("redis").contains("noeviction"), "{}", run.out);
    assert!(
        run.line("permission").starts_with("ok    permission     may send for project demo-project"),
        "{}",
        run.out
    );
    assert!(run.line("token").contains("it lives 3600 s"), "{}", run.out);
    assert!(run.line("grants").contains("2 requests to the provider, each with a grant"), "{}", run.out);
    let log = world.emulator.log();
    assert!(
        log.len() == 1 && log[0].status == 200 && !log[0].accepted,
        "FCM was given one message, to look at: {log:?}"
    );
    let lanes: Vec<String> = world.redis.as_ref().unwrap().command(&["KEYS", "*"]).await;
    assert!(
        lanes.iter().any(|key| key.ends_with(":fcm.send")) && lanes.iter().any(|key| key.ends_with(":oauth.token"))
    );
    assert!(!lanes.iter().any(|key| key.ends_with(":doctor")), "{lanes:?}");
}

#[tokio::test]
async fn one_instance_on_a_file_with_tls_passes_before_beside_and_after_a_service() {
    let world = World::with(Database::Sqlite, false, Settings { tls: true, ..Settings::default() }).await;
    let before = run(&world, &[]).await;
    assert_eq!(before.code, Some(0), "{}{}", before.out, before.err);
    assert!(before.line("database").contains("serve makes it"), "{}", before.out);
    let service = world.serve().await;
    let beside = run(&world, &[]).await;
    assert!(beside.line("database").contains("a running service has it open"), "{}", beside.out);
    assert!(beside.code == Some(0) && beside.line("migrations").starts_with("ok"), "{}", beside.out);
    assert!(beside.line("grants").contains("2 requests to the provider, beside"), "{}", beside.out);
    service.stop().await.unwrap();
    let after = run(&world, &[]).await;
    assert!(after.code == Some(0) && after.line("database").contains("no service has it open"), "{}", after.out);
}

#[tokio::test]
async fn a_key_that_the_token_endpoint_refuses_is_named_with_its_words() {
    let world = World::new(Database::Postgres, false).await;
    world.emulate(Control { oauth_answer: Some("grant-signature".into()), ..Control::default() });
    let run = run(&world, &[]).await;
    run.fails_only(69, "token", &["invalid_grant: Invalid JWT Signature", "Fix: make a new key"]);
    assert!(run.line("permission").starts_with("warn  permission     not checked: there is no access token"));
    assert!(run.line("streams").starts_with("ok") && run.line("grants").contains("1 request "), "{}", run.out);
}

#[tokio::test]
async fn what_fcm_says_to_the_message_is_told_with_what_to_do() {
    let world = World::new(Database::Sqlite, false).await;
    for (answer, grade, fix) in [
        ("invalid", Grade::Ok, ""),
        ("invalid-field", Grade::Ok, ""),
        ("dead", Grade::Ok, ""),
        ("iam", Grade::Fail(Trouble::Unavailable), "roles/firebasecloudmessaging.admin in project demo-project"),
        ("apidisabled", Grade::Fail(Trouble::Unavailable), "enable the Firebase Cloud Messaging API"),
        ("noproject", Grade::Fail(Trouble::Unavailable), "there is no project demo-project"),
        ("bare401", Grade::Fail(Trouble::Unavailable), "make a new key"),
        ("foreign", Grade::Fail(Trouble::Unavailable), "key of the project"),
        ("thirdparty", Grade::Fail(Trouble::Unavailable), "APNs"),
        ("payload", Grade::Warn, "report"),
        ("quota", Grade::Warn, "ceiling.rate_per_s"),
        ("html502", Grade::Fail(Trouble::Unavailable), "status.firebase.google.com"),
        ("html200", Grade::Fail(Trouble::Unavailable), "try again"),
    ] {
        world.emulate(rule(answer));
        let findings = found(&world).await;
        let permission = of(&findings, "permission");
        assert!(permission.grade == grade && permission.fix.contains(fix), "{answer}: {permission}");
        let others = findings.iter().filter(|f| f.check != "permission").cloned().collect::<Vec<_>>();
        assert_eq!(conclude(&others).trouble, None, "{answer}: {others:#?}");
    }
    world.emulate(rule("iam"));
    let denied = run(&world, &[]).await;
    assert_eq!(denied.code, Some(69), "{}", denied.out);
    assert!(denied.line("permission").starts_with("fail  permission     a validate_only message was answered \"403"));
}

#[tokio::test]
async fn a_redis_that_is_away_fails_alone_and_the_requests_are_said_to_be_uncounted() {
    let mut world = World::new(Database::Postgres, false).await;
    let absent = RedisServer::absent();
    world.set("REDIS__URL", format!("unix://{}", absent.socket().display()));
    let run = run(&world, &[]).await;
    run.fails_only(69, "redis", &["redis: ", "Fix: check redis.url (REDIS_URL)"]);
    assert!(run.line("grants").contains("2 requests to the provider, beside"), "{}", run.out);
}

#[tokio::test]
async fn a_redis_that_evicts_warns_and_one_that_refuses_the_script_fails() {
    let mut world = World::new(Database::Sqlite, true).await;
    let redis = world.redis.as_ref().unwrap();
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let evicts = found(&world).await;
    let line = of(&evicts, "redis");
    assert!(
        line.grade == Grade::Warn && line.found.contains("allkeys-lru") && line.fix.contains("noeviction"),
        "{line}"
    );
    assert_eq!(conclude(&evicts).trouble, None, "{evicts:#?}");

    let _: () =
        redis.command(&["ACL", "SETUSER", "plain", "on", ">pw", "~*", "+ping", "+info", "+hello", "+client"]).await;
    let socket = redis.socket();
    world.set("REDIS__URL", format!("unix://{}?user=plain&pass=pw", socket.display()));
    let refused = found(&world).await;
    let line = of(&refused, "redis");
    assert!(line.grade == Grade::Fail(Trouble::Unavailable), "{line}");
    assert!(line.found.contains("NOPERM") && line.fix.contains("EVALSHA"), "{line}");
    assert!(!format!("{refused:?}").contains("pw\""), "{refused:?}");
}

#[tokio::test]
async fn an_old_schema_is_told_with_the_command_and_a_newer_one_with_the_build() {
    let world = World::new(Database::Postgres, false).await;
    let mut connection = world.connection().await;
    sqlx::query("DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)")
        .execute(&mut connection)
        .await
        .unwrap();
    run(&world, &[]).await.fails_only(69, "migrations", &["applied", "Fix: run `fanfare migrate`"]);
    sqlx::query("UPDATE _sqlx_migrations SET version = 999 WHERE version = 2 OR version = 3")
        .execute(&mut connection)
        .await
        .unwrap();
    let newer = found(&world).await;
    assert!(of(&newer, "migrations").found.contains("migration 999 is newer"), "{newer:#?}");
    sqlx::query("DROP TABLE _sqlx_migrations").execute(&mut connection).await.unwrap();
    let none = found(&world).await;
    assert!(of(&none, "migrations").found.starts_with("0 of "), "{none:#?}");
}

#[tokio::test]
async fn a_low_stream_limit_warns_with_the_number_to_set() {
    let world = World::with(Database::Sqlite, false, Settings { max_streams: 7, ..Settings::default() }).await;
    let run = run(&world, &[]).await;
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let line = run.line("streams");
    assert!(
        line.starts_with("warn") && line.contains("allows 7 streams") && line.contains("connection to 7"),
        "{line}"
    );
}

#[tokio::test]
async fn bad_settings_are_all_named_and_everything_else_is_checked_all_the_same() {
    let mut world = World::new(Database::Postgres, false).await;
    world.set("FCM__SLOTS", "lots");
    world.set("FCM__STALL_AFTER_MS", "30000");
    world.set("CEILING__RATE_PER_S", "20000");
    let run = run(&world, &[]).await;
    assert_eq!(run.code, Some(78), "{}{}", run.out, run.err);
    for (key, fix) in [
        ("fcm.slots (environment variable FANFARE__FCM__SLOTS): \"lots\"", "whole number"),
        ("fcm.stall_after_ms (", "lower it"),
        ("ceiling.rate_per_s (", "lower it"),
    ] {
        let line = run.out.lines().find(|line| line.contains(key)).unwrap_or_else(|| panic!("{key}: {}", run.out));
        assert!(line.starts_with("fail  configuration  ") && line.contains(fix), "{line}");
    }
    assert!(run.line("quota").starts_with("fail  quota          burst 200 + 60 x 20000 requests/s = 1200200"));
    for check in ["database", "migrations", "token", "permission"] {
        assert!(run.line(check).starts_with("ok"), "{}", run.out);
    }
    world.set("DATABASE__URL", "mysql://u:hunter2@h/d");
    let unasked = found(&world).await;
    assert_eq!(of(&unasked, "database").found, "not checked: database.url is at fault");
    assert!(!format!("{unasked:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_server_without_room_for_the_connections_of_the_instances_that_live_is_told() {
    let mut world = World::new(Database::Postgres, false).await;
    let mut connection = world.connection().await;
    let live = "INSERT INTO instance (boot_id, started_ms, heartbeat_ms, lease_until_ms)
                SELECT gen_random_uuid(), fanfare_now_ms(), fanfare_now_ms(), fanfare_now_ms() + 600000
                FROM generate_series(1, 3)";
    sqlx::query(live).execute(&mut connection).await.unwrap();
    world.set("DATABASE__MAX_CONNECTIONS", 500);
    let crowded = found(&world).await;
    let line = of(&crowded, "connections");
    assert!(line.grade == Grade::Fail(Trouble::Config), "{line}");
    assert!(line.found.contains("3 instances live, each opens up to 502") && line.found.contains("3 x 502"), "{line}");
    let redis = of(&crowded, "redis");
    assert!(redis.grade == Grade::Warn && redis.found.contains("each has 1/3 of the ceiling"), "{redis}");
}

#[tokio::test]
async fn a_clock_that_is_apart_from_googles_is_told_on_both_sides_of_a_failure() {
    let world = World::new(Database::Sqlite, false).await;
    for (skew_s, grade) in [(60, Grade::Warn), (-900, Grade::Fail(Trouble::Other))] {
        world.emulate(Control { clock_skew_s: Some(skew_s), ..Control::default() });
        let findings = found(&world).await;
        let clock = of(&findings, "clock");
        let word = if skew_s > 0 { "behind the token endpoint" } else { "ahead of the token endpoint" };
        assert!(clock.grade == grade && clock.found.contains(word), "{clock}");
        assert!(clock.fix.contains("this machine's clock"), "{clock}");
    }
}

#[tokio::test]
async fn as_json_it_is_one_object_with_the_exit_code_and_nothing_is_sent_unasked() {
    let mut world = World::new(Database::Sqlite, false).await;
    let well = run(&world, &["--json", "--no-send"]).await;
    let document: Value = serde_json::from_str(&well.out).unwrap();
    assert_eq!((well.code, &document["exit_code"]), (Some(0), &Value::from(0)), "{document}");
    let permission = document["checks"].as_array().unwrap().iter().find(|c| c["check"] == "permission").unwrap();
    assert_eq!(
        (&permission["result"], &permission["found"]),
        (&"warn".into(), &"not checked: --no-send was given".into())
    );
    assert_eq!(world.emulator.log().len(), 0);

    world.set("FCM__CREDENTIALS", "{}");
    let bad = run(&world, &["--json"]).await;
    let document: Value = serde_json::from_str(&bad.out).unwrap();
    assert_eq!((bad.code, &document["exit_code"]), (Some(78), &Value::from(78)), "{document}");
    assert_eq!(document["failed"], serde_json::json!(["credentials"]));
}

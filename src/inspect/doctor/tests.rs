//! What each check says of facts: its grade, the numbers, the fix.

use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::ceiling::{RedisAway, RedisFacts, RedisRefused, RedisServer};
use crate::config::Fault;
use crate::domain::outcome::{CredentialFault, Failure, Verdict};
use crate::fcm::attempted::Attempted;
use crate::fcm::bearer::Bearer;
use crate::fcm::broken::Broken;
use crate::fcm::checkup::{Granted, Looked, TokenCall, TokenError, Unreached};
use crate::fcm::connections::ConnectionId;
use crate::store::{ConnectionFacts, FileLock, PostgresFacts, SchemaState, SqliteFacts, StoreError};

const MS: Duration = Duration::from_millis(1);
const OTHER: Grade = Grade::Fail(Trouble::Other);
const AWAY: Grade = Grade::Fail(Trouble::Unavailable);
const CONFIG: Grade = Grade::Fail(Trouble::Config);

/// Demands a grade, words in what was found, and words in the fix; what is well needs no fix.
#[track_caller]
fn says(finding: &Finding, grade: Grade, found: &str, fix: &str) {
    assert_eq!(finding.grade, grade, "{finding}");
    assert!(finding.found.contains(found), "{found:?} is not in: {finding}");
    assert!(finding.fix.contains(fix) && (finding.fix.is_empty() == (grade == Grade::Ok)), "{fix:?}: {finding}");
}

#[test]
fn the_trouble_to_mend_first_decides_and_a_warning_is_none() {
    let of = |grades: &[Grade]| {
        let finding = |grade: &Grade| Finding { grade: *grade, ..Finding::ok("x", "") };
        conclude(&grades.iter().map(finding).collect::<Vec<_>>())
    };
    assert_eq!(of(&[Grade::Ok, Grade::Warn, Grade::Warn]), Conclusion { failed: vec![], warned: 2, trouble: None });
    assert_eq!(of(&[OTHER, Grade::Warn]).trouble, Some(Trouble::Other));
    assert_eq!(of(&[OTHER, AWAY, Grade::Ok]).trouble, Some(Trouble::Unavailable));
    let both = of(&[AWAY, CONFIG, OTHER]);
    assert_eq!((both.trouble, both.failed), (Some(Trouble::Config), vec!["x"]), "each name once");
}

#[test]
fn a_finding_is_one_line_with_its_fix() {
    let finding = Finding::fail("redis", Trouble::Unavailable, "redis: refused", "start it");
    assert_eq!(finding.to_string(), "fail  redis          redis: refused. Fix: start it");
    assert_eq!(Finding::ok("quota", "fits").to_string(), "ok    quota          fits");
    assert_eq!(Finding::unchecked("token", "no key").to_string(), "warn  token          not checked: no key");
}

#[test]
fn every_fault_of_the_configuration_has_a_line() {
    let fault =
        |key: &str| Fault { key: key.into(), origin: "default".into(), fault: "is odd".into(), fix: "mend".into() };
    let found = configuration(&[fault("a.b"), fault("c.d")], (32, 2));
    assert_eq!(found.len(), 2);
    says(&found[0], CONFIG, "a.b (default): is odd", "mend");
    says(&configuration(&[], (32, 3))[0], Grade::Ok, "32 settings, 3 of them given", "");
}

#[test]
fn what_is_written_down_is_judged_without_asking_anybody() {
    says(&types(&Ok(Types { types: 21, file: String::new() })), Grade::Ok, "21 event types, built in", "");
    says(&types(&Err("types.file t.toml: line 3".into())), CONFIG, "line 3", "types.file");
    let named = |scopes| Ok(vec![("backend".to_owned(), scopes)]);
    says(&keys(&named(vec!["events", "ops"])), Grade::Ok, "1 API keys: backend (events+ops)", "");
    says(&keys(&named(vec!["ops"])), Grade::Warn, "none may post events", "fanfare key");
    says(&keys(&Err("entry 1 must be".into())), CONFIG, "api.keys: entry 1", "fanfare key");
    says(&quota(9000.0, 90.0, 600_000), Grade::Ok, "= 540090 requests/min at most, 90.0 % of the quota of 600000", "");
    says(&quota(10.0, 1.0, 600), CONFIG, "601 requests/min", "ceiling.rate_per_s");
    assert_eq!(quota(10.0, 1.0, 601).grade, Grade::Ok);
}

fn server(allowed: u32, others: u32, live: u32, schema: SchemaState) -> Vec<Finding> {
    let connections = ConnectionFacts { allowed, limit: "max_connections 100 less 3 reserved".into(), others, ours: 5 };
    let facts = PostgresFacts {
        place: "db:5432/fanfare".into(),
        version: "15.4".into(),
        answers_in: MS,
        ahead_ms: 0,
        read_only: false,
        schema,
        live: Some(live),
        connections,
    };
    postgres(&Ok(facts), 18)
}

#[test]
fn the_connections_of_all_instances_are_held_against_what_the_server_allows() {
    let of = |allowed, others, live| server(allowed, others, live, SchemaState::Current(8)).remove(2);
    says(
        &of(97, 6, 2),
        Grade::Ok,
        "97 allowed (max_connections 100 less 3 reserved); 5 in use by Fanfare and 6 by others",
        "",
    );
    says(&of(97, 6, 2), Grade::Ok, "2 instances live, each opens up to 18 connections; room for 3 more", "");
    says(&of(97, 30, 4), Grade::Warn, "4 x 18 = 72 do not fit beside the others", "database.max_connections");
    says(&of(97, 20, 4), Grade::Warn, "room for 0 more instances", "database.max_connections");
    says(&of(97, 0, 6), CONFIG, "6 x 18 = 108 do not fit", "raise the limit");
    says(&of(17, 0, 0), CONFIG, "1 x 18 = 18 do not fit", "raise the limit");
    assert_eq!(of(20, 0, 0).grade, Grade::Ok, "the first one fits, and nobody asks for a second");
}

#[test]
fn a_schema_is_this_builds_or_the_command_is_named() {
    let of = |schema| server(97, 0, 0, schema).remove(1);
    says(&of(SchemaState::Current(8)), Grade::Ok, "8 of 8 applied", "");
    says(&of(SchemaState::Behind { applied: 6, brought: 8 }), AWAY, "6 of 8 applied", "`fanfare migrate`");
    says(&of(SchemaState::Foreign("migration 9 is newer than this build".into())), AWAY, "migration 9", "build");
}

#[test]
fn a_database_that_does_not_answer_leaves_the_others_unchecked_and_said_so() {
    let found = postgres(&Err(StoreError::Unavailable("doctor: refused".into())), 18);
    says(&found[0], AWAY, "doctor: refused", "DATABASE_URL");
    assert!(found[1..].iter().all(|f| f.grade == Grade::Warn && f.found.starts_with("not checked")), "{found:?}");
    says(&postgres(&Err(StoreError::Statement("the database URL".into())), 18)[0], CONFIG, "URL", "postgres://");
}

fn file() -> SqliteFacts {
    SqliteFacts {
        path: PathBuf::from("/data/fanfare.db"),
        bytes: Some(3 << 20),
        free_bytes: 5 << 30,
        lock: FileLock::Free,
        unwritable: None,
        schema: Some(Ok(SchemaState::Current(8))),
    }
}

#[test]
fn a_file_that_a_service_has_open_is_no_failure() {
    says(&sqlite(&Ok(file()))[0], Grade::Ok, "/data/fanfare.db, 3.0 MiB; no service has it open; 5120 MiB free", "");
    let held = SqliteFacts { lock: FileLock::Held, ..file() };
    says(&sqlite(&Ok(held))[0], Grade::Ok, "a running service has it open", "");
    let full = SqliteFacts { free_bytes: 1 << 20, ..file() };
    says(&sqlite(&Ok(full))[0], Grade::Warn, "1 MiB free", "make room");
    let locked = SqliteFacts { unwritable: Some("/data: Permission denied".into()), ..file() };
    says(&sqlite(&Ok(locked))[0], AWAY, "not writable: /data: Permission denied", "right to write");
    let fresh = SqliteFacts { bytes: None, schema: None, ..file() };
    assert!(sqlite(&Ok(fresh)).iter().all(|f| f.grade == Grade::Ok));
    let old = SqliteFacts { schema: Some(Ok(SchemaState::Behind { applied: 1, brought: 8 })), ..file() };
    says(&sqlite(&Ok(old))[1], Grade::Ok, "serve applies the others", "");
    let odd = SqliteFacts { schema: Some(Err(StoreError::Corrupt("not a database".into()))), ..file() };
    says(&sqlite(&Ok(odd))[1], AWAY, "not a database", "another file");
    says(&sqlite(&Err(StoreError::Unavailable("no directory".into())))[0], AWAY, "no directory", "DATABASE_URL");
}

fn redis(policy: &str, middle: Duration) -> Finding {
    let server = RedisServer {
        version: "7.2".into(),
        role: "master".into(),
        policy: policy.into(),
        max_bytes: 0,
        used_bytes: 1 << 20,
    };
    fleet(&Fleet::Redis(Ok(RedisFacts { silent: 0, answers_in: (middle, middle), server: Some(server) })))
}

#[test]
fn redis_is_judged_by_what_the_ceiling_needs_of_it() {
    says(&redis("noeviction", MS), Grade::Ok, "Redis 7.2 (master), the script runs, answers in 1.0 ms", "");
    says(&redis("allkeys-lru", MS), Grade::Warn, "maxmemory-policy allkeys-lru", "noeviction");
    says(&redis("noeviction", MS * 40), Grade::Warn, "answers in 40.0 ms", "nearer");
    let server = Some(RedisServer { policy: "noeviction".into(), ..RedisServer::default() });
    let busy = RedisFacts { silent: 2, answers_in: (MS, MS), server };
    says(&fleet(&Fleet::Redis(Ok(busy))), Grade::Warn, "after 2 tries without an answer in 100 ms", "nearer");
    let facts = RedisFacts { silent: 0, answers_in: (MS, MS), server: None };
    says(&fleet(&Fleet::Redis(Ok(facts))), Grade::Warn, "how it evicts", "INFO");
    let refused = |code: &str| fleet(&Fleet::Redis(Err(RedisRefused::Script(RedisAway::Answered(code.into())))));
    says(&refused("READONLY"), AWAY, "redis: READONLY", "the primary");
    says(&refused("NOPERM"), AWAY, "redis: NOPERM", "EVALSHA");
    says(&refused("OOM"), AWAY, "redis: OOM", "maxmemory");
    says(&fleet(&Fleet::Redis(Err(RedisRefused::Connect(RedisAway::Refused)))), AWAY, "redis: refused", "REDIS_URL");
}

#[test]
fn doing_without_redis_is_well_until_a_second_instance_lives() {
    let alone = |shared_database, live| fleet(&Fleet::Alone { shared_database, live });
    assert_eq!([alone(false, 0), alone(true, 0), alone(true, 1)].map(|f| f.grade), [Grade::Ok; 3]);
    says(&alone(true, 3), Grade::Warn, "3 instances live, so each has 1/3 of the ceiling", "REDIS_URL");
}

#[test]
fn a_clock_is_odd_from_5_seconds_and_wrong_from_5_minutes_on_either_side() {
    let of = |database, token| clocks(Clocks { database, token, fcm: None });
    says(
        &of(Some(4), Some(-300)),
        Grade::Ok,
        "this machine is 0.0 s ahead of the database, 0.3 s behind the token",
        "",
    );
    says(&of(None, Some(-5_000)), Grade::Warn, "5.0 s behind the token endpoint", "this machine's clock");
    says(&of(Some(0), Some(300_000)), OTHER, "300.0 s ahead of", "this machine's clock");
    says(&of(Some(-400_000), Some(100)), OTHER, "400.0 s behind the database", "the clock of the database server");
    assert_eq!(of(Some(4_999), None).grade, Grade::Ok);
    assert_eq!(clocks(Clocks::default()).grade, Grade::Warn, "nobody told the time");
}

#[test]
fn open_files_are_held_against_what_all_connections_need() {
    let of = |soft| descriptors(Descriptors { soft: Some(soft), hard: Some(4096), api: 1024, others: 20 });
    says(&of(1108), Grade::Ok, "soft limit 1108 (hard 4096); needed at most 1108", "");
    says(&of(1107), Grade::Warn, "needed at most 1108", "LimitNOFILE=2048");
    says(&of(83), OTHER, "soft limit 83", "ulimit -n 2048");
    assert_eq!(descriptors(Descriptors { soft: None, hard: None, api: 1024, others: 20 }).grade, Grade::Ok);
}

fn account() -> Account {
    Account { email: "s@p.iam".into(), project: "my-project".into(), other: None }
}

#[test]
fn credentials_name_account_and_project() {
    says(&credentials(&Ok(account())), Grade::Ok, "s@p.iam, for project my-project", "");
    let mixed = Account { other: Some("theirs".into()), ..account() };
    says(&credentials(&Ok(mixed)), Grade::Warn, "the key is of project theirs", "fcm.project_id");
    says(
        &credentials(&Err((Trouble::Config, "there are none".into()))),
        CONFIG,
        "there are none",
        "Generate new private key",
    );
}

#[test]
fn an_access_token_is_told_with_its_time_and_a_refusal_with_its_fix() {
    let of = |granted| token("https://t/token", &TokenCall { took: MS * 38, granted, ahead_ms: None });
    let good = Granted { bearer: Bearer::new("secret").unwrap(), life: Duration::from_secs(3599) };
    let told = of(Ok(good));
    says(&told, Grade::Ok, "https://t/token gave an access token in 38 ms; it lives 3599 s", "");
    assert!(!told.to_string().contains("secret"));
    says(&of(Err(TokenError::Refused("400 invalid_grant".into()))), AWAY, "38 ms: 400 invalid_grant", "new key");
    says(&of(Err(TokenError::Unavailable("no connection".into()))), AWAY, "no connection", "firewall");
    says(&of(Err(TokenError::Throttled(MS * 60_000))), Grade::Warn, "wait 60 s", "wait");
}

#[test]
fn fewer_streams_than_wanted_are_a_warning_with_the_number_to_set() {
    let of = |reached| streams(&Endpoint { url: "https://fcm".into(), reached }, 100);
    says(
        &of(Ok((100, MS * 12))),
        Grade::Ok,
        "https://fcm allows 100 streams on a connection, 100 are used; connected in 12 ms",
        "",
    );
    says(&of(Ok((7, MS))), Grade::Warn, "allows 7 streams", "fcm.streams_per_connection to 7");
    says(&of(Ok((u32::MAX, MS))), Grade::Ok, "without limit", "");
    says(&of(Err(Unreached::Broken(Broken::Tls))), AWAY, "https://fcm: TLS handshake failed", "proxy");
}

fn looked(verdict: Verdict, status: u16) -> Finding {
    let attempted = Attempted {
        verdict,
        status,
        text: format!("{status} so it said"),
        connection: ConnectionId(1),
        took: MS * 40,
        maybe: false,
    };
    permission(&account(), &Looked { attempted, ahead_ms: None })
}

#[test]
fn a_refusal_of_the_made_up_token_is_leave_to_send_and_every_other_names_its_fix() {
    for verdict in [Verdict::Accepted, Verdict::TokenDead, Verdict::TokenInvalid, Verdict::TokenSuspect] {
        says(&looked(verdict, 400), Grade::Ok, "may send for project my-project", "");
    }
    let credential = |fault, status| looked(Verdict::Credential(fault), status);
    says(
        &credential(CredentialFault::Project, 403),
        AWAY,
        "403 so it said",
        "give s@p.iam the role roles/firebasecloudmessaging.admin in project my-project",
    );
    says(&credential(CredentialFault::Project, 404), AWAY, "404", "there is no project my-project");
    says(&credential(CredentialFault::AccessToken, 401), AWAY, "401", "make a new key");
    says(&credential(CredentialFault::Platform, 401), AWAY, "401", "APNs");
    says(&looked(Verdict::TokenForeign, 403), AWAY, "another sender", "key of the project");
    says(&looked(Verdict::Payload, 400), Grade::Warn, "may send", "report");
    says(&looked(Verdict::Throttled(None), 429), Grade::Warn, "throttles", "ceiling.rate_per_s");
    for verdict in [Verdict::Failed(Failure::Protocol, None), Verdict::Unprocessed, Verdict::Unsent, Verdict::Unopened]
    {
        says(&looked(verdict, 502), AWAY, "502", "try again");
    }
}

#[test]
fn requests_of_the_check_are_told_with_who_counted_them() {
    let of = |requests, mode| charged(&Charged { requests, mode });
    says(
        &of(2, "shared"),
        Grade::Ok,
        "2 requests to the provider, each with a grant of the fleet's ceiling in Redis",
        "",
    );
    says(&of(1, "single"), Grade::Ok, "1 request to the provider, beside what running instances count", "");
}

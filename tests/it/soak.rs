//! A soak as CI runs it, only short: on SQLite, with a seed, in a process of its own. `tests/mutants` runs the same with faults
//! planted, and each has to end with the name of the law it breaks; here the build is healthy, and every law holds.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

use crate::harness::postgres::TestDatabase;

/// Longest wait for a day of a quarter of a minute, its end, and a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// Exit code, stdout, stderr.
type Ended = (Option<i32>, String, String);

/// `fanfare soak` with no settings from outside but these and a planted fault.
async fn soak(dir: &Path, args: &[&str], settings: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanfare"));
    command.arg("soak").args(args).env_clear().envs(settings.iter().copied()).current_dir(dir);
    for name in ["PATH", "FANFARE_MUTANT"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.env("TMPDIR", dir).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("the soak ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn states(report: &Value) -> Vec<(&str, &str)> {
    let all = report["invariants"].as_array().unwrap();
    all.iter().map(|i| (i["name"].as_str().unwrap(), i["state"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn a_short_day_on_sqlite_keeps_every_law_and_tells_it_in_four_ways() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["--json", "new.json", "--html", "new.html", "--markdown", "new.md"];
    let args = ["--minutes", "0.25", "--faults", "redis-away", "--seed", "3", "--rate", "300"];
    let (code, out, err) = soak(dir.path(), &[&args[..], &files].concat(), &[]).await;
    assert_eq!(code, Some(0), "{out}{err}");
    let file = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let report: Value = serde_json::from_str(&file("new.json")).unwrap();
    let told = states(&report);
    for name in ["conservation", "no_loss", "duplicates", "ceiling", "ledger", "pruning", "rest", "processes"] {
        assert!(told.contains(&(name, "ok")), "{told:?}");
        assert!(out.lines().any(|line| line.starts_with(name)) && file("new.md").contains(name), "{out}");
    }
    assert!(told.contains(&("rss", "not_judged")), "too short to tell: {told:?}");
    assert_eq!((report["schema"].as_u64(), report["passed"].as_bool()), (Some(1), Some(true)));
    let totals = &report["totals"];
    assert!(totals["delivered"].as_u64().unwrap() > 300, "{totals}");
    assert!(totals["retried"].as_u64().unwrap() > 0 && report["outcomes"]["token_dead"].as_u64().unwrap() > 0);
    assert!(out.contains("Redis frozen  not done") && out.contains("\nsoak passed: 15 s, faults redis-away, seed 3"));
    assert!(!err.contains(['\r', '\u{1b}']) && err.starts_with("soaking "), "{err}");
    let page = file("new.html");
    assert!(page.matches("<svg").count() == 6 && page.contains("<path class=\"line c1\""), "{page}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "nothing but what was asked for: {left:?}");
}

/// Few slots, more to send than they can, and two of five hundred that stall.
#[tokio::test]
async fn slots_that_are_lent_while_a_few_sends_stall_are_what_keeps_the_law() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["--minutes", "0.4", "--faults", "stalls", "--seed", "5", "--rate", "2000", "--load", "15", "--json", "a.json"];
    let (code, out, err) =
        soak(dir.path(), &args, &[("FANFARE__FCM__SLOTS", "12"), ("FANFARE__FCM__STALL_AFTER_MS", "300")]).await;
    assert_eq!(code, Some(0), "{out}{err}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("a.json")).unwrap()).unwrap();
    assert!(states(&report).contains(&("lending", "ok")), "{out}");
    assert!(report["stalls"]["episodes"].as_u64() == Some(1), "{}", report["stalls"]);
}

/// On PostgreSQL, more to send than the ceiling lets through, while Redis is frozen and killed.
#[tokio::test]
async fn two_instances_without_redis_share_one_ceiling() {
    let (dir, database) = (tempfile::tempdir().unwrap(), TestDatabase::create().await);
    let fleet = ["--instances", "2", "--database", &database.url];
    let args = ["--minutes", "0.5", "--faults", "redis-away", "--seed", "2", "--rate", "150", "--load", "80"];
    let (code, out, err) = soak(dir.path(), &[&args[..], &fleet, &["--json", "a.json"]].concat(), &[]).await;
    assert_eq!(code, Some(0), "{out}{err}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("a.json")).unwrap()).unwrap();
    assert!(states(&report).contains(&("ceiling", "ok")) && report["absent"].as_array().unwrap().is_empty(), "{out}");
    let modes = report["series"]["modes"].as_array().unwrap();
    assert!(["shared", "split"].iter().all(|mode| modes.iter().any(|band| band["mode"] == *mode)), "{modes:?}");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_anything_is_started() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("none.json"), "{}").unwrap();
    for (args, expected, word) in [
        (&["--instances", "2"][..], 2, "--database"),
        (&["--faults", "rain"], 2, "redis-away"),
        (&["--minutes", "0"], 2, "0.1"),
        (&["--compare", "none.json"], 2, "none.json is not the JSON of a soak"),
        (&["--database", "postgres://nobody@127.0.0.1:1/x", "--redis", "redis://127.0.0.1:1"], 69, "127.0.0.1:1"),
    ] {
        let (code, out, err) = soak(dir.path(), args, &[]).await;
        assert_eq!((code, out.as_str()), (Some(expected), ""), "{args:?}: {err}");
        assert!(err.contains(word), "{args:?}: {err}");
    }
}

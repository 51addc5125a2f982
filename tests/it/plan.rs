//! `fanfare plan` as a user meets it: the answers it gives, in words and as JSON, and what it says to what makes no sense.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// What a run said.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

fn plan(args: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanfare"));
    command.arg("plan").args(args).env_clear().stdin(Stdio::null());
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// The answer to what makes sense.
fn told(args: &[&str]) -> String {
    let run = plan(args);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{run:?}");
    run.out
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&told(&[args, &["--json"]].concat())).unwrap()
}

/// The line that says this, with single blanks.
fn line(text: &str, says: &str) -> String {
    let line = text.lines().find(|line| line.contains(says)).unwrap_or_else(|| panic!("{says} is missing in:\n{text}"));
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Demands exit code 2 and a message with all these words.
fn refused(args: &[&str], words: &[&str]) {
    let run = plan(args);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{args:?} {run:?}");
    for word in words {
        assert!(run.err.contains(word), "{args:?}: {word} is missing in:\n{}", run.err);
    }
}

const SIX: &[&str] =
    &["limiter", "--served", "129.01", "--refused", "7.27", "--limit", "150", "--limiters", "6", "--retries", "1"];

#[test]
fn the_published_limiter_case_is_told_with_its_own_numbers() {
    let one = told(&["limiter", "--rate", "136.28", "--limit", "150", "--windows", "4000"]);
    assert!(line(&one, "P(N > L)").contains(" 0.1128 "), "{one}");
    assert!(line(&one, "E[N | N > L]").contains(" 156.4 "), "{one}");
    assert!(line(&one, "refusals, retries to the same").contains(" 0.7261 "), "{one}");
    assert!(line(&one, "counted from limit + 1").ends_with("0.6133 /s"), "{one}");
    assert!(line(&one, "exceeded windows").ends_with("6.767 /min"), "{one}");
    assert!(!one.contains("DIFFERS"), "{one}");

    let six = told(&[SIX, &["--windows", "4000"]].concat());
    assert!(six.starts_with("132.645 requests/s before retries"), "{six}");
    assert!(line(&six, "refusals, retries to the same").contains(" 9.613 "), "{six}");
    assert!(line(&six, "counted from limit + 1").ends_with("6.853 /s"), "{six}");
    assert!(line(&six, "observed").contains("7.270/s refused, 0.7563 times"), "{six}");
    assert!(!six.contains("DIFFERS"), "{six}");
}

#[test]
fn a_limiter_as_json_has_every_figure_and_the_same_one_each_time() {
    let first = json(&[SIX, &["--windows", "400", "--seed", "5"]].concat());
    assert_eq!(first, json(&[SIX, &["--windows", "400", "--seed", "5"]].concat()));
    assert!((first["question"]["rate_per_s"].as_f64().unwrap() - 132.645).abs() < 1e-9);
    assert!((first["formula"]["refused_per_s"].as_f64().unwrap() - 9.6128).abs() < 1e-3);
    assert_eq!((&first["verdict"], &first["simulation"][1]["again"]), (&"agrees".into(), &"random".into()));
    let ns: Vec<u64> =
        first["split"].as_array().unwrap().iter().map(|cost| cost["limiters"].as_u64().unwrap()).collect();
    assert_eq!(ns, [1, 2, 3, 4, 5, 6, 8, 10, 12, 16]);
}

#[test]
fn a_bucket_is_told_as_a_bucket() {
    let bucket = told(&[
        "limiter",
        "--rate",
        "136.28",
        "--limit",
        "150",
        "--kind",
        "bucket",
        "--burst",
        "15",
        "--windows",
        "2000",
    ]);
    assert!(bucket.contains("in buckets that hold 15"), "{bucket}");
    assert!(line(&bucket, "a bucket is empty").ends_with("agrees"), "{bucket}");
    assert!(!bucket.contains("limit + 1") && !bucket.contains("P(N > L)"), "{bucket}");
}

#[test]
fn the_committed_plot_of_splitting_is_what_the_command_draws() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("split.svg");
    told(&[
        "limiter",
        "--rate",
        "132.645",
        "--limit",
        "150",
        "--retries",
        "1",
        "--windows",
        "40",
        "--plot",
        file.to_str().unwrap(),
    ]);
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/plan-split.svg");
    if std::env::var_os("FANFARE_TEST_WRITE_CORPUS").is_some() {
        std::fs::copy(&file, &committed).unwrap();
    }
    let drawn = std::fs::read_to_string(&file).unwrap();
    assert_eq!(drawn, std::fs::read_to_string(committed).unwrap(), "FANFARE_TEST_WRITE_CORPUS=1 writes it anew");
    assert_eq!(drawn.matches("<polyline points=\"").count(), 4);
    assert!(!drawn.contains("points=\"\"") && !drawn.contains("NaN"), "{drawn}");
}

#[test]
fn what_cannot_be_asked_of_a_limiter_is_refused_by_the_name_of_the_option() {
    let with = |more: &[&'static str]| [&["limiter", "--rate", "10", "--limit", "5"], more].concat();
    refused(&with(&["--limiters", "6"]), &["--limit 5", "at least 6"]);
    refused(&with(&["--burst", "5"]), &["--burst", "--kind bucket"]);
    refused(&with(&["--window", "1"]), &["--window", "250ms, 1s"]);
    refused(&with(&["--window", "0s"]), &["--window", "at least 1ms"]);
    refused(&with(&["--kind", "sliding"]), &["--kind", "window, bucket"]);
    refused(&with(&["--served", "3"]), &["--rate", "--served"]);
    refused(&["limiter", "--limit", "5"], &["--rate"]);
    refused(&["limiter", "--limit", "5", "--served", "3"], &["--refused"]);
    refused(&["limiter", "--limit", "5", "--rate", "nan"], &["--rate", "0.001 to 1000000"]);
    let nowhere = plan(&with(&["--windows", "40", "--plot", "/nonexistent/a.svg"]));
    assert!(nowhere.code == Some(1) && nowhere.err.contains("--plot /nonexistent/a.svg"), "{nowhere:?}");
}

// --- fan-outs ---

const PUBLISHED: &[&str] = &[
    "fanout",
    "--recipients",
    "1018",
    "--latency",
    "91ms",
    "--start-up",
    "0s",
    "--stall-probability",
    "0.45%",
    "--stall-time",
    "15.4s",
];

#[test]
fn the_published_fan_out_is_told_with_its_own_numbers() {
    let answer = json(PUBLISHED);
    let seconds =
        |path: &str| answer.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {answer}"));
    assert!((2.85..2.95).contains(&seconds("/strict/formula/calm_s")), "{answer}");
    for path in ["/strict/formula/typical_s", "/strict/simulation/typical_s", "/lent/simulation/typical_s"] {
        assert!((17.6..18.1).contains(&seconds(path)), "{path}: {answer}");
    }
    // Lending does not make the stalled answers faster; it gives the others their slots back.
    assert!(seconds("/lent/simulation/others_s") < seconds("/strict/simulation/others_s"), "{answer}");
    assert_eq!(answer["bottleneck"], "slots");

    let told = told(&[PUBLISHED, &["--runs", "40"]].concat());
    assert!(told.contains("32 slots at 91 ms are 352/s, not 32."), "{told}");
    assert!(line(&told, "bottleneck").ends_with("slots"), "{told}");
    assert!(line(&told, "then waited for stalled answers").ends_with('%'), "{told}");
    assert!(line(&told, "with 4 to 5 stalls").contains("17."), "{told}");
}

#[test]
fn fifty_workers_at_30_ms_are_told_what_they_are() {
    let told = told(&[
        "fanout",
        "--recipients",
        "100",
        "--slots",
        "50",
        "--latency",
        "30ms",
        "--ceiling",
        "100",
        "--runs",
        "3",
    ]);
    assert!(told.contains("50 slots at 30 ms are 1667/s, not 50."), "{told}");
    assert!(line(&told, "bottleneck").ends_with("ceiling"), "{told}");
}

#[test]
fn a_goal_beyond_the_quota_is_told_to_be_impossible_and_what_it_would_take() {
    let ask = |more: &[&'static str]| {
        let args = ["fanout", "--recipients", "1000", "--slots", "400", "--latency", "40ms", "--runs", "3", "--goal"];
        told(&[&args[..], more].concat())
    };
    let never = ask(&["90% of 1.9M within 2m"]);
    assert!(
        line(&never, "goal")
            .contains("NOT POSSIBLE under this quota: it takes 14250 requests/s, the quota allows 9998"),
        "{never}"
    );
    assert!(never.contains("a quota of 855143/min"), "{never}");
    assert!(
        line(&never, "worst minute").ends_with("540090 requests in the worst minute, of 600000: it fits"),
        "{never}"
    );

    let slots = ask(&["90% of 1M within 2m", "--connections", "1"]);
    assert!(line(&slots, "goal").contains("not with these slots and streams (2500/s)"), "{slots}");
    let ceiling = ask(&["90% of 1M within 2m", "--ceiling", "5000"]);
    assert!(line(&ceiling, "goal").contains("not at --ceiling 5000"), "{ceiling}");
    let fine = ask(&["90% of 1M within 2m"]);
    assert!(line(&fine, "goal").ends_with("possible: it takes 7500 requests/s"), "{fine}");
    let unsafe_rate = ask(&["1% of 1M within 2m", "--ceiling", "10000"]);
    assert!(
        line(&unsafe_rate, "worst minute").contains("TOO MUCH: `fanfare config check` refuses it; at most 9998.33/s"),
        "{unsafe_rate}"
    );
}

#[test]
fn a_log_is_predicted_line_by_line_and_the_error_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("service.log");
    // The line of the README, among others; the second fan-out was paused for a minute, which no model knows.
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let finished = readme.lines().find(|line| line.contains("\"fan-out finished\"")).unwrap();
    let paused = finished
        .replace("\"fanout_id\":\"1\"", "\"fanout_id\":\"2\"")
        .replace("\"duration_ms\":3621", "\"duration_ms\":63621")
        .replace("\"held_ms\":0", "\"held_ms\":60000");
    std::fs::write(&log, format!("started\n{{\"message\":\"ready\"}}\n{finished}\n{paused}\n")).unwrap();
    let args = ["fanout", "--against", log.to_str().unwrap()];

    let answer = json(&args);
    let error = |i: usize| answer["fanouts"][i]["error"].as_f64().unwrap();
    assert!(error(0).abs() < 0.1, "the demo took what was predicted: {answer}");
    assert!(error(1) < -0.9, "the error stays: {answer}");
    assert_eq!((&answer["other_lines"], &answer["no_json"]), (&1.into(), &1.into()));

    let told = told(&args);
    assert!(told.contains("2 fan-outs") && told.contains("1 other lines, 1 that are no JSON"), "{told}");
    assert!(told.contains("63.62 s") && told.contains("60.00 s"), "{told}");

    std::fs::write(&log, "started\n").unwrap();
    refused(&args, &["--against", "LOG_FORMAT=json"]);
    std::fs::write(&log, "{\"message\":\"fan-out finished\"}\n").unwrap();
    refused(&args, &["--against", "line 1: missing field `fanout_id`"]);
    refused(&["fanout", "--against", "/nonexistent"], &["--against /nonexistent", "may be read"]);
}

#[test]
fn what_cannot_be_asked_of_a_fan_out_is_refused_by_the_name_of_the_option() {
    let with = |more: &[&'static str]| [&["fanout", "--recipients", "10", "--latency", "40ms"], more].concat();
    refused(&["fanout", "--latency", "40ms"], &["--recipients"]);
    refused(&["fanout", "--recipients", "10"], &["--latency"]);
    refused(&with(&["--lent", "33"]), &["--lent 33", "32 slots"]);
    refused(&with(&["--latency-p99", "1s"]), &["--latency-p99", "--stall-probability"]);
    refused(&with(&["--stall-time", "31s"]), &["--stall-time 31 s", "fcm.attempt_timeout_ms"]);
    refused(&with(&["--stall-probability", "2"]), &["--stall-probability", "0% to 100%"]);
    refused(&with(&["--goal", "all of it"]), &["--goal", "'90% of 1.9M within 2m'"]);
    refused(&with(&["--against", "x"]), &["--against", "--recipients"]);
    assert!(told(&with(&["--stall-probability", "1%", "--lent"])).contains("16 lent"));
}

// --- a season ---

const SEASON: &[&str] = &["season", "docs/examples/fixtures.csv"];

#[test]
fn the_example_season_is_told_with_its_peak_and_what_it_takes() {
    let answer = json(SEASON);
    assert_eq!((&answer["matches"], &answer["followers"]), (&8.into(), &1_610_000.into()));
    let needed = answer["needed"]["rate_per_s"].as_f64().unwrap();
    for fate in answer["needed"]["at_rate"].as_array().unwrap() {
        assert!(fate["missed"]["value"].as_f64().unwrap() <= 0.001, "{fate} at {needed}/s");
    }
    // Exactly one of each match, and the mean of the others.
    let of =
        |name: &str| answer["at_ceiling"].as_array().unwrap().iter().find(|fate| fate["name"] == name).unwrap().clone();
    assert_eq!(
        (of("full_time")["events"].as_f64(), of("full_time")["recipients"].as_f64()),
        (Some(8.0), Some(1_288_000.0))
    );
    assert!((of("corner")["events"].as_f64().unwrap() / 80.0 - 1.0).abs() < 0.1, "{}", of("corner"));
    let hours: f64 = answer["hours"].as_array().unwrap().iter().map(|hour| hour["requests"].as_f64().unwrap()).sum();
    assert!((hours / answer["requests"].as_f64().unwrap() - 1.0).abs() < 1e-9);

    let told = told(SEASON);
    assert!(told.starts_with("8 matches, 1610000 followers of them in all, "), "{told}");
    assert!(line(&told, "The busiest minute").contains("2026-12-0"), "{told}");
    assert!(line(&told, "full_time").starts_with("full_time 8.000 1288000 0 %"), "{told}");
    // Nothing else is worth so little time.
    assert_eq!(answer["needed"]["decided_by"], "corner");
    assert!(told.contains("it is corner that decides"), "{told}");
}

#[test]
fn the_settings_it_prints_are_taken_by_config_check() {
    let answer = json(&[SEASON, &["--missed", "0.5%"]].concat());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fanfare.toml");
    std::fs::write(&file, answer["config_patch"].as_str().unwrap()).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_fanfare"));
    check.args(["config", "check", "--config"]).arg(&file).env_clear().current_dir(folder.path());
    check.env("FANFARE_API_KEYS", format!("ci:events:{}", "0".repeat(64))).env("FANFARE__FCM__CREDENTIALS", "metadata");
    let output = check.output().unwrap();
    assert!(output.status.success(), "{}\n{output:?}", answer["config_patch"]);
    // And a quota that is too small is said to be.
    let small = told(&[SEASON, &["--quota", "1000"]].concat());
    assert!(small.contains("MORE than there is: ask Google"), "{small}");
}

#[test]
fn files_that_are_wrong_are_refused_by_place_and_fix() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let fixtures = write("fixtures.csv", "kick_off,home,away,followers\n2026-12-05T15:00:00Z,a,b,x\nsoon,a,b,1\n");
    refused(&["season", &fixtures], &["line 2, column 26: followers", "line 3, column 1: kick_off"]);
    refused(&["season", "/nonexistent.csv"], &["FIXTURES.csv /nonexistent.csv", "may be read"]);
    let rates = write("rates.toml", "[types.gaol]\nper_match = 1\nfrom = 0\nto = 9\nreach = 1\n");
    refused(&[SEASON, &["--rates", &rates]].concat(), &["--rates", "unknown type", "did you mean goal?"]);
    let rates = write("rates.toml", "[types.goal]\nper_match = 1\nfrom = 9\nto = 0\nreach = 1\n");
    refused(&[SEASON, &["--rates", &rates]].concat(), &["--rates", "types.goal: from"]);
    let types = write("types.toml", "default_locale = 1\n");
    refused(&[SEASON, &["--types", &types]].concat(), &["--types", "line 1"]);
    let rates = write("rates.toml", "[types.goal]\nper_match = 1\nscheduled = true\nfrom = 5\nto = 5\nreach = 1\n");
    let one = json(&[SEASON, &["--rates", &rates]].concat());
    assert_eq!((one["at_ceiling"].as_array().unwrap().len(), &one["requests"]), (1, &1_610_000.0.into()));
}

#[test]
fn every_help_has_examples_and_every_option_its_default() {
    for command in ["limiter", "fanout", "season"] {
        let help = told(&[command, "--help"]);
        assert!(help.contains(&format!("  fanfare plan {command} ")), "{help}");
        for option in help
            .split("\n      --")
            .skip(1)
            .filter(|option| option.lines().next().is_some_and(|line| line.contains('<')))
        {
            let needed = ["limit ", "recipients ", "rate ", "latency "].iter().any(|name| option.starts_with(name));
            assert!(needed || option.contains("[default: "), "no default: --{option}");
        }
    }
}

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
    assert_eq!(ns, [1, 2, 3, 4, 5, 6, 8, 10, 16, 32]);
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

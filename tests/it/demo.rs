//! The demo as a new person meets it: what it prints off a terminal, what can be swapped in, how it ends.

use std::process::Stdio;
use std::time::Duration;

use fanfare::emulator::{Emulator, Settings};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

/// Longest wait for what takes a second or two on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The demo with its temporary files in `tmp` and no settings from outside.
fn demo(tmp: &tempfile::TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanfare"));
    command.arg("demo").args(args).env_clear().env("TMPDIR", tmp.path()).current_dir(tmp.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Its exit code, stdout and stderr.
async fn ended(mut command: Command) -> (Option<i32>, String, String) {
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("the demo ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// What it left among the temporary files.
fn left(tmp: &tempfile::TempDir) -> Vec<std::ffi::OsString> {
    std::fs::read_dir(tmp.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[tokio::test]
async fn off_a_terminal_it_prints_plain_lines_and_an_account_that_the_emulator_agrees_with() {
    let tmp = tempfile::tempdir().unwrap();
    let (code, out, err) = ended(demo(&tmp, &["--exit", "--followers", "200"])).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(!out.contains(['\r', '\u{1b}']), "{out}");
    assert!(out.contains(r#""recipients":200,"delivered":196,"failed":4,"#), "{out}");
    assert!(out.contains("agrees: 202 requests, 196 accepted, 0 of them twice"), "{out}");
    assert_eq!(left(&tmp), Vec::<std::ffi::OsString>::new());
}

#[tokio::test]
async fn a_database_and_a_running_emulator_can_be_swapped_in_without_any_setting() {
    let tmp = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(Settings::default()).unwrap();
    let args =
        ["--exit", "--followers", "50", "--database-url", "sqlite:own.db", "--fcm-endpoint", emulator.endpoint()];
    let (code, out, err) = ended(demo(&tmp, &args)).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let stats = emulator.stats();
    assert_eq!((stats.requests, stats.accepted), (50, 48), "{out}");
    assert!(left(&tmp).contains(&"own.db".into()), "what is the user's stays");
    emulator.stop().await;
}

#[tokio::test]
async fn what_is_missing_is_said_in_one_line_with_an_exit_code_of_its_own() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (http, postgres) = (format!("http://{closed}"), format!("postgres://u:hunter2@{closed}/x"));
    for (args, expected, word) in [
        (["--fcm-endpoint", http.as_str()], 78, "GOOGLE_APPLICATION_CREDENTIALS"),
        (["--fcm-endpoint", "https://fcm.googleapis.com"], 78, "GOOGLE_APPLICATION_CREDENTIALS"),
        (["--database-url", postgres.as_str()], 69, "--database-url"),
        (["--redis-url", "localhost"], 78, "redis://"),
    ] {
        let tmp = tempfile::tempdir().unwrap();
        let (code, out, err) = ended(demo(&tmp, &[&["--exit"], &args[..]].concat())).await;
        assert_eq!((code, out.as_str(), err.lines().count()), (Some(expected), "", 1), "{args:?}: {err}");
        assert!(err.starts_with("fanfare: ") && err.contains(word) && !err.contains("hunter2"), "{args:?}: {err}");
        assert_eq!(left(&tmp), Vec::<std::ffi::OsString>::new(), "{args:?}");
    }
}

/// The three commands, as they stand in the output.
async fn commands(child: &mut Child) -> Vec<String> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut commands = Vec::new();
    while commands.len() < 3 {
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap().expect("more");
        if line.starts_with("  /") {
            commands.push(line.trim().to_owned());
        }
    }
    // Whoever writes on needs a reader.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    commands
}

#[tokio::test]
async fn what_it_says_to_try_works_as_printed_and_an_interrupt_ends_it_cleanly() {
    let tmp = tempfile::tempdir().unwrap();
    let mut child = demo(&tmp, &["--followers", "100"]).spawn().unwrap();
    for (command, word) in
        commands(&mut child).await.iter().zip([": 98 delivered, 2 failed", "98: 98 delivered", ", tombstoned"])
    {
        let run = Command::new("sh").args(["-c", command]).output().await.unwrap();
        let out = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && out.contains(word), "{command}: {out}{}", String::from_utf8_lossy(&run.stderr));
    }
    // The shell's own `kill`: a small machine has no other.
    let kill = format!("kill -INT {}", child.id().unwrap());
    assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
    let status = tokio::time::timeout(PATIENCE, child.wait()).await.expect("the demo ends").unwrap();
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).await.unwrap();
    assert_eq!((status.code(), err.as_str()), (Some(0), ""));
    assert_eq!(left(&tmp), Vec::<std::ffi::OsString>::new());
}

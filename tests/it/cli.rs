//! The binary as a user meets it: help, exit codes, messages. Each test runs the real process with an environment of
//! its own and nothing else.

use std::net::SocketAddr;
use std::process::Stdio;

use fanfare::api::Keys;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;

use super::harness::postgres::TestDatabase;

/// What a run said.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

async fn fanfare(args: &[&str], env: &[(&str, &str)]) -> Run {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanfare"));
    command.args(args).env_clear().envs(env.iter().copied()).current_dir(home.path()).stdin(Stdio::null());
    let output = command.kill_on_drop(true).output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[tokio::test]
async fn help_names_every_command_and_every_default() {
    let help = fanfare(&["--help"], &[]).await;
    assert_eq!(help.code, Some(0));
    for command in [
        "serve",
        "demo",
        "emulator",
        "migrate",
        "send",
        "fanout",
        "devices",
        "key",
        "plan",
        "healthcheck",
        "config",
        "openapi",
        "Exit codes",
    ] {
        assert!(help.out.contains(command), "{command} is missing in:\n{}", help.out);
    }
    let demo = fanfare(&["demo", "--help"], &[]).await.out;
    // Every option that takes a value says what it is without one.
    for option in ["--database-url", "--redis-url", "--fcm-endpoint", "--followers", "--config"] {
        let after = demo.split(option).nth(1).unwrap_or_else(|| panic!("{option} is missing in:\n{demo}"));
        let own = after.split("\n      --").next().unwrap_or(after);
        assert!(own.contains("[default: "), "{option} has no default in:\n{demo}");
    }
}

#[tokio::test]
async fn the_version_is_the_one_of_the_crate() {
    let run = fanfare(&["-V"], &[]).await;
    assert_eq!(run.out, format!("fanfare {}\n", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn a_mistyped_command_exits_2_and_is_told_the_right_one() {
    let run = fanfare(&["sreve"], &[]).await;
    assert_eq!(run.code, Some(2));
    assert!(run.err.contains("'serve'"), "{}", run.err);
    assert_eq!(fanfare(&[], &[]).await.code, Some(2));
}

#[tokio::test]
async fn a_bad_setting_exits_78_with_one_message_that_names_key_fault_and_fix() {
    for command in [&["serve"][..], &["migrate"], &["healthcheck"], &["config", "check"], &["config", "print"]] {
        let run = fanfare(command, &[("FANFARE__FCM__SLOTS", "lots")]).await;
        assert_eq!(run.code, Some(78), "{run:?}");
        assert_eq!(run.out, "");
        let message = "fanfare: bad configuration: fcm.slots (environment variable FANFARE__FCM__SLOTS): \
                       \"lots\" is not a number. Fix: give it a whole number, 1 to 4096 attempts\n";
        assert_eq!(run.err, message);
    }
}

#[tokio::test]
async fn serve_without_a_key_exits_78_and_says_how_to_make_one() {
    let run = fanfare(&["serve"], &[]).await;
    assert_eq!(run.code, Some(78), "{run:?}");
    assert!(run.err.contains("api.keys") && run.err.contains("fanfare key --name"), "{}", run.err);
    assert_eq!(fanfare(&["config", "check"], &[]).await.err, run.err, "check says what serve says");
}

#[tokio::test]
async fn a_mistyped_key_entry_is_refused_before_anything_starts() {
    for command in [&["serve"][..], &["config", "check"]] {
        let run = fanfare(command, &[("FANFARE_API_KEYS", "ci:event:0123")]).await;
        assert_eq!(run.code, Some(78), "{run:?}");
        let start = "fanfare: bad configuration: api.keys (environment variable FANFARE_API_KEYS): ";
        assert!(run.err.starts_with(start) && run.err.contains("`event`") && !run.err.contains("0123"), "{}", run.err);
    }
}

#[tokio::test]
async fn no_message_shows_a_secret() {
    let secret = "hunter2hunter2";
    let dsn = format!("mysql://u:{secret}@h/d");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("[redis]\nurl = \"redis://:{secret}@h\n")).unwrap();
    let path = file.path().to_str().unwrap();
    for (args, env) in [
        (&["config", "check"][..], &[("DATABASE_URL", dsn.as_str())][..]),
        (&["serve"], &[("REDIS_URL", secret), ("FANFARE_API_KEYS", secret)]),
        (&["config", "print", "--config", path], &[]),
    ] {
        let run = fanfare(args, env).await;
        assert_eq!(run.code, Some(78), "{run:?}");
        assert!(!run.err.contains(secret) && !run.out.contains(secret), "{run:?}");
    }
}

#[tokio::test]
async fn config_print_shows_what_is_in_force_and_config_check_says_ok() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[fcm]\nslots = 8\n").unwrap();
    let path = file.path().to_str().unwrap();
    let hash = "0123456789abcdef".repeat(4);
    let entry = format!("ci:events:{hash}");
    let env = [
        ("FANFARE_API_KEYS", entry.as_str()),
        ("FANFARE__CEILING__RATE_PER_S", "100"),
        ("FANFARE__FCM__CREDENTIALS", "metadata"),
    ];
    let run = fanfare(&["--config", path, "config", "print"], &env).await;
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    let line = |start: &str| run.out.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{run:?}"));
    assert!(line("slots = 8").ends_with(&format!("# {path} line 2")));
    assert!(line("rate_per_s = 100.0").ends_with("# environment variable FANFARE__CEILING__RATE_PER_S"));
    assert!(line("stall_after_ms = 1000").ends_with("# default"));
    assert!(line("keys = \"(set, hidden)\"").ends_with("# environment variable FANFARE_API_KEYS"));
    assert!(!run.out.contains(&hash));

    let check = fanfare(&["config", "check", "--config", path], &env).await;
    assert_eq!((check.code, check.out.as_str(), check.err.as_str()), (Some(0), "ok\n", ""));
}

#[tokio::test]
async fn migrate_exits_69_when_the_database_is_not_there() {
    // Port 1 of this machine: nobody listens there, and the answer is immediate.
    let run = fanfare(&["migrate"], &[("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/d")]).await;
    assert_eq!(run.code, Some(69), "{run:?}");
    assert!(!run.err.contains("hunter2"), "{}", run.err);
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_told_in_words_and_once() {
    let database = TestDatabase::create().await;
    let absent = fanfare(&["migrate"], &[("DATABASE_URL", &format!("{}_not", database.url))]).await;
    assert_eq!(absent.code, Some(69), "{absent:?}");
    assert!(absent.err.contains("no such database") && absent.err.contains("DATABASE_URL"), "{}", absent.err);

    let emulator = fanfare::emulator::Emulator::start(fanfare::emulator::Settings::default()).unwrap();
    let env = [
        ("DATABASE_URL", database.url.as_str()),
        ("FANFARE_API_KEYS", &format!("ci:events:{}", "0".repeat(64))),
        ("FANFARE__FCM__ENDPOINT", emulator.endpoint()),
        ("FANFARE__FCM__CREDENTIALS", &emulator.key_json()),
        ("FANFARE__API__LISTEN", "127.0.0.1:0"),
        ("FANFARE__OPS__LISTEN", "127.0.0.1:0"),
    ];
    let bare = fanfare(&["serve"], &env).await;
    assert_eq!(bare.code, Some(69), "{bare:?}");
    assert_eq!(bare.err.matches("fanfare migrate").count(), 1, "{}", bare.err);
}

#[tokio::test]
async fn what_is_wrong_on_this_side_is_not_blamed_on_the_service() {
    let env = [("FANFARE_KEY", "k"), ("FANFARE_URL", "http://127.0.0.1:1")];
    let directory = fanfare(&["devices", "import", "."], &env).await;
    assert_eq!((directory.code, directory.err.as_str()), (Some(1), "fanfare: .: is a directory\n"));
    let env = [("FANFARE_KEY", "k"), ("FANFARE_URL", "http://u:hunter2@127.0.0.1:1")];
    let password = fanfare(&["fanout", "list"], &env).await;
    assert_eq!(password.code, Some(2), "{password:?}");
    assert!(password.err.contains("no password") && !password.err.contains("hunter2"), "{}", password.err);
}

#[tokio::test]
async fn a_state_that_is_none_is_refused_before_anybody_is_asked() {
    let run = fanfare(&["fanout", "list", "--state", "nope"], &[("FANFARE_KEY", "k")]).await;
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{run:?}");
    for state in ["freezing", "sending", "done", "cancelled", "set_aside"] {
        assert!(run.err.contains(state), "{}", run.err);
    }
}

#[tokio::test]
async fn a_service_that_is_not_there_is_named_with_what_to_do() {
    let env = [("FANFARE_KEY", "k"), ("FANFARE_URL", "http://127.0.0.1:1")];
    for args in [&["fanout", "explain", "17", "phone-1"][..], &["fanout", "cancel", "17"], &["devices", "show", "d"]] {
        let run = fanfare(args, &env).await;
        assert_eq!((run.code, run.out.as_str()), (Some(69), ""), "{run:?}");
        assert!(run.err.contains("http://127.0.0.1:1") && run.err.contains("FANFARE_URL"), "{}", run.err);
        assert!(run.err.contains("fanfare serve"), "{}", run.err);
    }
    let keyless = fanfare(&["fanout", "cancel", "17"], &[]).await;
    assert!(keyless.code == Some(2) && keyless.err.contains("FANFARE_KEY"), "{keyless:?}");
}

#[tokio::test]
async fn what_can_name_nothing_is_a_usage_error_that_says_what_to_write() {
    let env = [("FANFARE_KEY", "k"), ("FANFARE_URL", "http://127.0.0.1:1")];
    for (args, says) in [
        (&["devices", "show", "export"][..], "no device can have this id"),
        (&["devices", "show", ""], "must not be empty"),
        (&["fanout", "explain", "17", ".."], "no device can have this id"),
        (&["fanout", "show", "01"], "must be a number such as 17"),
        (&["fanout", "cancel", "abc"], "must be a number such as 17"),
        (&["devices", "export", "--state", "wat"], "tombstoned"),
        (&["fanout", "list", "--url", "127.0.0.1:8680"], "FANFARE_URL takes an address such as http://"),
        (&["fanout", "list", "--url", ""], "must begin with http://"),
        (&["fanout", "list", "--key", " \n"], "no API key"),
        (&["fanout", "list", "--key", "a\u{e9}b"], "FANFARE_KEY holds a character"),
    ] {
        let run = fanfare(args, &env).await;
        assert!(run.code == Some(2) && run.out.is_empty() && run.err.contains(says), "{args:?}: {run:?}");
    }
    // The line end of a file is no part of the key: the address is asked, where nobody is.
    let trimmed = fanfare(&["fanout", "list"], &[("FANFARE_KEY", "k\n"), env[1]]).await;
    assert_eq!(trimmed.code, Some(69), "{trimmed:?}");
}

#[tokio::test]
async fn an_import_that_gets_no_answer_says_that_it_may_be_run_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{}\n").unwrap();
    let (path, env) = (file.path().to_str().unwrap(), [("FANFARE_KEY", "k"), ("FANFARE_URL", "http://127.0.0.1:1")]);
    let run = fanfare(&["devices", "import", "--revive", path], &env).await;
    let again = format!(
        "how many lines were kept is not known; it is safe to run the same command again: fanfare devices import --revive {path}"
    );
    assert!(run.code == Some(69) && run.err.contains(&again), "{run:?}");
}

#[tokio::test]
async fn settings_are_taken_only_where_they_are_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for args in [&["--config", path, "fanout", "list"][..], &["fanout", "list", "--config", path]] {
        let run = fanfare(args, &[("FANFARE_KEY", "k"), ("FANFARE_URL", "http://127.0.0.1:1")]).await;
        assert!(run.code == Some(2) && run.err.contains("--config"), "{run:?}");
    }
    assert!(!fanfare(&["fanout", "list", "--help"], &[]).await.out.contains("--config"));
    std::fs::write(file.path(), "[ops]\nlisten = \"127.0.0.1:1\"\n").unwrap();
    for args in [&["--config", path, "healthcheck"][..], &["healthcheck", "--config", path]] {
        let run = fanfare(args, &[]).await;
        assert!(run.code == Some(1) && run.err.contains("127.0.0.1:1/readyz"), "{run:?}");
    }
}

#[tokio::test]
async fn an_emulator_on_a_taken_port_exits_69_and_names_another() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let run = fanfare(&["emulator", "--listen", &addr], &[]).await;
    assert_eq!((run.code, run.out.as_str()), (Some(69), ""), "{run:?}");
    assert!(run.err.contains(&addr) && run.err.contains("--listen") && run.err.contains("another port"), "{}", run.err);
}

#[tokio::test]
async fn the_document_is_printed_and_every_command_shows_how_it_is_used() {
    let run = fanfare(&["openapi"], &[]).await;
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    assert_eq!(run.out, fanfare::api::openapi::document());
    for args in [
        &["send"][..],
        &["fanout", "list"],
        &["fanout", "show"],
        &["fanout", "explain"],
        &["fanout", "cancel"],
        &["key"],
        &["healthcheck"],
        &["openapi"],
    ] {
        let help = fanfare(&[args, &["--help"]].concat(), &[]).await;
        let shown = format!("fanfare {}", args.join(" "));
        let mut examples = help.out.lines().filter(|line| line.starts_with("  ") && line.contains(&shown));
        assert!(help.code == Some(0) && examples.next().is_some(), "{args:?}:\n{}", help.out);
    }
}

#[tokio::test]
async fn a_demo_that_cannot_start_exits_like_any_other_command() {
    let bad = fanfare(&["demo", "--exit", "--database-url", "mysql://u:hunter2@h/d"], &[]).await;
    assert_eq!(bad.code, Some(78), "{bad:?}");
    let absent = fanfare(&["demo", "--exit", "--database-url", "postgres://u:hunter2@127.0.0.1:1/d"], &[]).await;
    assert_eq!(absent.code, Some(69), "{absent:?}");
    assert!(!bad.err.contains("hunter2") && !absent.err.contains("hunter2"), "{bad:?} {absent:?}");
}

#[tokio::test]
async fn a_key_is_printed_once_with_the_entry_that_admits_it() {
    let run = fanfare(&["key", "--name", "ci", "--scopes", "events,ops,events"], &[]).await;
    assert_eq!(run.code, Some(0), "{run:?}");
    let value = |word: &str| {
        let line = run.out.lines().find(|line| line.starts_with(word)).unwrap_or_else(|| panic!("{run:?}"));
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    let (key, entry) = (value("key "), value("entry "));
    let hash: String = Sha256::digest(&key).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(entry, format!("ci:events+ops:{hash}"));
    assert!(!run.err.contains(&key), "shown once: {}", run.err);

    let other = fanfare(&["key", "--name", "ci", "--scopes", "events"], &[]).await;
    assert!(!other.out.contains(&key), "two keys are never the same");
    let nightly = fanfare(&["key", "--name", "nightly", "--scopes", "devices", "--bulk"], &[]).await;
    let entry = nightly.out.lines().find_map(|line| line.strip_prefix("entry ")).unwrap();
    let key = nightly.out.lines().find_map(|line| line.strip_prefix("key ")).unwrap();
    assert!(Keys::parse(entry).unwrap().find(key).unwrap().bulk, "{entry}");
}

#[tokio::test]
async fn a_key_with_an_unknown_scope_or_a_bad_name_exits_2() {
    for args in [["--name", "ci", "--scopes", "root"], ["--name", "a:b", "--scopes", "ops"]] {
        let run = fanfare(&[&["key"][..], &args[..]].concat(), &[]).await;
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{run:?}");
    }
}

/// Answers one connection with `answer`, or accepts and stays silent.
async fn listener(answer: Option<&'static str>) -> (SocketAddr, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 1024];
        let n = stream.read(&mut request).await.unwrap();
        match answer {
            Some(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
            // Until the other side gives up.
            None => while stream.read(&mut request[n..]).await.is_ok_and(|n| n > 0) {},
        }
        String::from_utf8(request[..n].to_vec()).unwrap()
    });
    (addr, served)
}

#[tokio::test]
async fn healthcheck_exits_0_only_for_a_service_that_is_ready() {
    for (answer, code, says) in [
        (Some("HTTP/1.1 200 OK\r\n\r\n"), 0, ""),
        (Some("HTTP/1.1 503 Service Unavailable\r\n\r\n"), 1, "not ready (status 503)"),
        (Some("SSH-2.0-OpenSSH_9.2\r\n"), 1, "not HTTP/1.1"),
        (None, 1, "no answer within 200 ms"),
    ] {
        let (addr, served) = listener(answer).await;
        let listen = addr.to_string();
        let env = [("FANFARE__OPS__LISTEN", listen.as_str())];
        let run = fanfare(&["healthcheck", "--timeout-ms", if answer.is_none() { "200" } else { "20000" }], &env).await;
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(run.err.contains(says), "{run:?}");
        assert!(served.await.unwrap().starts_with("GET /readyz HTTP/1.1\r\n"));
    }
}

#[tokio::test]
async fn healthcheck_reaches_a_service_that_listens_to_everybody() {
    let (addr, served) = listener(Some("HTTP/1.1 200 OK\r\n\r\n")).await;
    let everybody = format!("0.0.0.0:{}", addr.port());
    let run = fanfare(&["healthcheck"], &[("FANFARE__OPS__LISTEN", everybody.as_str())]).await;
    assert_eq!(run.code, Some(0), "{run:?}");
    served.await.unwrap();
}

#[tokio::test]
async fn healthcheck_exits_1_when_nobody_is_there() {
    let run = fanfare(&["healthcheck", "--addr", "127.0.0.1:1"], &[]).await;
    assert_eq!((run.code, run.out.as_str()), (Some(1), ""), "{run:?}");
}

//! What SQLite promises for its one instance, on the real binary: a full disk, another program that writes, a second
//! instance, kill -9 again and again, a file that cannot be written, was taken away, or is of a newer build.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fanfare::client::ClientError;
use fanfare::emulator::Control;
use fanfare::wire::{EventRequest, Fanout, Problem};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::process::Command;

use super::harness::process::Process;
use super::harness::service::{Caller, Database, World, goal};

/// The most recipients a kill may repeat by default (law 9).
const EXPOSURE: u64 = 64;
/// Longer than any fault here lasts.
const USEFUL_S: u32 = 600;

/// A world on SQLite whose provider takes 20 ms for an answer.
async fn world() -> World {
    let world = World::new(Database::Sqlite, false).await;
    world.emulate(Control { latency_ms: Some(20), ..Control::default() });
    world
}

fn tokens(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("ok-{i}")).collect()
}

/// The database file of a world.
fn file(world: &World) -> PathBuf {
    world.settings["FANFARE__DATABASE__URL"].strip_prefix("sqlite:").unwrap().into()
}

/// Another program that has the file open.
async fn other_program(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).connect().await.unwrap()
}

/// A goal for nobody.
fn event(id: &str) -> EventRequest {
    goal(id, "nobody", USEFUL_S)
}

async fn post(caller: &Caller, event: &EventRequest) -> Result<u16, Problem> {
    match caller.client.post_event(event).await {
        Ok((_, repeat)) => Ok(if repeat { 200 } else { 202 }),
        Err(ClientError::Refused(problem)) => Err(*problem),
        Err(error) => panic!("no answer: {error}"),
    }
}

/// Taken, however often a busy machine makes it wait for its turn.
async fn taken(caller: &Caller, event: &EventRequest) -> u16 {
    for _ in 0..20 {
        match post(caller, event).await {
            Ok(status) => return status,
            Err(problem) => assert!(problem.retryable, "{problem:?}"),
        }
    }
    panic!("refused twenty times");
}

/// Refused for now, and with something for the operator to go by.
async fn refused(caller: &Caller, event: &EventRequest) {
    let problem = post(caller, event).await.unwrap_err();
    assert_eq!((problem.status, problem.retryable), (503, true), "{problem:?}");
}

async fn says(service: &Process, begins: &str) -> Value {
    service.says(1, |line| line["message"].as_str().is_some_and(|text| text.starts_with(begins))).await
}

fn everybody_got_it(world: &World, fanout: &Fanout, n: u64) {
    let stats = world.emulator.stats();
    assert_eq!((fanout.recipients, fanout.delivered, fanout.failed), (n, n, 0), "{fanout:#?}");
    assert_eq!((stats.distinct_accepted, stats.duplicates_accepted), (n, 0), "{stats:?}");
    assert_eq!((fanout.attempts, fanout.ledger.as_str()), (n, "exact"), "{fanout:#?}");
}

/// A disk that can be full, or that the process dies on in the middle of a write. A file system of one's own would
/// need rights that a build machine does not give, a limit on file sizes gives another error and kills the process, and
/// SQLite's own limit of pages holds for one connection only. So this stands between SQLite and the system: while a file
/// says so, whatever writes to the database meets what a full disk, or a kill at that instant, would do. All of SQLite
/// and all of ours is real.
struct Disk(tempfile::TempDir);

const DISK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef ssize_t pwrite_t(int, const void *, size_t, off64_t);
typedef ssize_t write_t(int, const void *, size_t);

static int wanted(const char *fault) {
    char flag[4096];
    const char *disk = getenv("DISK");
    snprintf(flag, sizeof flag, "%s/%s", disk ? disk : "", fault);
    return disk && access(flag, F_OK) == 0;
}

/* The name of an open file from "/fanfare.db" on, or nothing. */
static const char *name(int fd, char path[4096]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, 4095);
    path[n < 0 ? 0 : n] = 0;
    const char *found = strstr(path, "/fanfare.db");
    return found ? found : "";
}

static int full(int fd) {
    char path[4096];
    if (!wanted("full") || !*name(fd, path)) return 0;
    errno = ENOSPC;
    return 1;
}

ssize_t write(int fd, const void *data, size_t n) {
    write_t *real = (write_t *)dlsym(RTLD_NEXT, "write");
    return full(fd) ? -1 : real(fd, data, n);
}

/* With a write-ahead log only a checkpoint writes to the file itself. */
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) {
    char path[4096];
    pwrite_t *real = (pwrite_t *)dlsym(RTLD_NEXT, "pwrite64");
    if (full(fd)) return -1;
    if (wanted("deadly") && !strcmp(name(fd, path), "/fanfare.db")) {
        real(fd, data, n / 2, at);
        kill(getpid(), SIGKILL);
    }
    return real(fd, data, n, at);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return pwrite64(fd, data, n, at); }
"#;

impl Disk {
    /// Under every process that `world` starts from now on.
    async fn under(world: &mut World) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (source, library) = (directory.path().join("disk.c"), directory.path().join("disk.so"));
        std::fs::write(&source, DISK).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]).arg("-ldl");
        let built = compiler.output().await.expect("a C compiler, as building SQLite needs one");
        assert!(built.status.success(), "{built:?}");
        world.settings.insert("LD_PRELOAD".to_owned(), library.display().to_string());
        world.settings.insert("DISK".to_owned(), directory.path().display().to_string());
        Self(directory)
    }

    /// From now on `full` or `deadly`.
    fn becomes(&self, fault: &str) {
        std::fs::write(self.0.path().join(fault), "").unwrap();
    }

    /// No longer.
    fn no_longer(&self, fault: &str) {
        std::fs::remove_file(self.0.path().join(fault)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_accepting_and_sending_and_loses_and_repeats_nobody() {
    let mut world = world().await;
    let disk = Disk::under(&mut world).await;
    let (service, second) = (world.spawn().await, event("full-2"));
    service.follow("full", &tokens(1_200)).await;
    let id = service.goal("full", "full", USEFUL_S).await;
    world.emulator.logged(300).await;
    disk.becomes("full");
    let before = world.emulator.stats().requests;
    let failed = says(&service, "flush failed").await;
    assert!(failed["error"].as_str().is_some_and(|text| text.contains("full")), "{failed}");
    refused(&service, &second).await;
    // The next heartbeat is due within 3 s: whatever could still be sent has been.
    says(&service, "heartbeat failed").await;
    let stopped = world.emulator.stats().requests;
    assert!(stopped <= before + EXPOSURE + 16, "{before} when it was full, {stopped} then");
    refused(&service, &second).await;
    assert_eq!(world.emulator.stats().requests, stopped, "nothing more is sent");
    disk.no_longer("full");
    says(&service, "heartbeat is back").await;
    let fanout = service.settled(&id).await;
    everybody_got_it(&world, &fanout, 1_200);
    assert_eq!(post(&service, &second).await, Ok(202), "nothing of it was kept, and now it is");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_program_that_writes_for_3_s_is_waited_for() {
    let world = world().await;
    let service = world.spawn().await;
    service.follow("busy", &tokens(1_200)).await;
    let mut other = other_program(&file(&world)).await;
    let id = service.goal("busy", "busy", USEFUL_S).await;
    world.emulator.logged(300).await;
    let lock = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let before = world.emulator.stats().requests;
    let caller = Caller::clone(&service);
    let posting = tokio::spawn(async move { post(&caller, &event("busy-2")).await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!posting.is_finished(), "not answered before it is kept");
    let stopped = world.emulator.stats().requests;
    assert!(stopped <= before + EXPOSURE + 16, "{before} when the file was locked, {stopped} then");
    lock.rollback().await.unwrap();
    assert_eq!(posting.await.unwrap(), Ok(202));
    let fanout = service.settled(&id).await;
    everybody_got_it(&world, &fanout, 1_200);
    // The event whose turn came too late was refused, and posted again.
    let others = |line: &Value| line.get("error").is_some() && line["message"] != "requests are shed";
    assert_eq!(service.lines_that(others), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_is_refused_until_the_first_is_gone() {
    let world = world().await;
    let (first, kept) = (world.spawn().await, event("kept"));
    let second = world.run("serve").await;
    // Unavailable and not misconfigured: during a restart the same start works a moment later.
    assert_eq!(second.code, Some(69), "{second:?}");
    let says = ["another instance has", "fanfare.db open", "use Postgres for more"];
    assert!(says.iter().all(|part| second.err.contains(part)), "{}", second.err);
    assert_eq!(second.err.lines().count(), 1, "{}", second.err);
    assert_eq!(post(&first, &kept).await, Ok(202), "the first one goes on");
    first.kill().await;
    let third = world.spawn().await;
    assert_eq!(post(&third, &kept).await, Ok(200));
}

fn at(line: &Value) -> OffsetDateTime {
    OffsetDateTime::parse(line["timestamp"].as_str().unwrap(), &Rfc3339).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_process_had_is_sent_at_the_next_start_and_not_when_its_lease_ends() {
    let world = world().await;
    let first = world.spawn().await;
    first.follow("boot", &tokens(1_200)).await;
    let id = first.goal("boot", "boot", USEFUL_S).await;
    world.emulator.logged(300).await;
    first.kill().await;
    let second = world.spawn().await;
    let taken = says(&second, "took over chunks").await;
    let line = second.line(&id).await;
    let heard = at(&taken) - at(&second.said("serving")[0]);
    // A lease is 15 s.
    assert!(heard < Duration::from_secs(7), "{heard}");
    assert_eq!((line["delivered"].as_u64(), line["interrupted"].as_u64()), (Some(1_200), Some(1)), "{line}");
}

/// Killed at whatever point that happens to be: in a freeze, a flush, a settle, at a start, in a drain with the
/// checkpoint at its end. The emulator's log says who got what.
#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_it_loses_nobody_and_repeats_at_most_the_exposure_each_time() {
    let long = std::env::var("FANFARE_LONG").is_ok_and(|long| long == "1");
    let (kills, each) = (if long { 60 } else { 4 }, 400);
    let seed = if long { rand::random() } else { 4711 };
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let world = world().await;
    let mut service = world.spawn().await;
    service.follow("again", &tokens(each)).await;
    let (mut ids, mut events) = (Vec::new(), 0);
    for kill in 0..kills {
        for _ in 0..2 {
            events += 1;
            ids.push(service.goal(&format!("again-{events}"), "again", USEFUL_S).await);
        }
        // Progress in between: four kills without any would set a chunk aside, as they should.
        let seen = world.emulator.stats().requests + rng.random_range(70..600);
        world.emulator.logged(seen).await;
        if kill % 3 == 2 {
            service.terminate().await;
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..60))).await;
        }
        service.kill().await;
        service = world.spawn().await;
    }
    for id in &ids {
        let fanout = service.settled(id).await;
        assert_eq!((fanout.recipients, fanout.delivered, fanout.failed), (each as u64, each as u64, 0), "{fanout:#?}");
    }
    let stats = world.emulator.stats();
    println!("{} duplicates after {kills} kills", stats.duplicates_accepted);
    assert_eq!(stats.accepted - stats.duplicates_accepted, (events * each) as u64, "somebody was lost: {stats:?}");
    assert!(stats.duplicates_accepted <= kills * EXPOSURE, "{stats:?}");
}

/// A drain ends with a checkpoint. Killed in the middle of writing a page of it, the file is torn and the log is whole.
#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_a_checkpoint_it_knows_everything_at_the_next_start() {
    let mut world = world().await;
    let disk = Disk::under(&mut world).await;
    let mut service = world.spawn().await;
    service.follow("torn", &tokens(1_200)).await;
    let id = service.goal("torn", "torn", USEFUL_S).await;
    world.emulator.logged(300).await;
    disk.becomes("deadly");
    service.terminate().await;
    assert_eq!(service.ended().await.signal(), Some(9), "it got as far as the checkpoint");
    disk.no_longer("deadly");
    let service = world.spawn().await;
    let fanout = service.settled(&id).await;
    everybody_got_it(&world, &fanout, 1_200);
    let mut other = other_program(&file(&world)).await;
    let sound: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut other).await.unwrap();
    assert_eq!(sound, "ok");
}

/// Starts `serve` as somebody who may not do everything: root may write what nobody may.
async fn serve_as_nobody(world: &World, directory: &Path) -> (Option<i32>, String) {
    let binary = directory.join("fanfare");
    std::fs::copy(env!("CARGO_BIN_EXE_fanfare"), &binary).unwrap();
    let mut command = Command::new(&binary);
    command.arg("serve").env_clear().envs(&world.settings).stdin(Stdio::null()).kill_on_drop(true);
    if std::fs::metadata(directory).unwrap().uid() == 0 {
        command.uid(65_534).gid(65_534);
    }
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("it ends").unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_or_directory_that_cannot_be_written_is_named_at_the_start() {
    let mut world = world().await;
    let (directory, program) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = directory.path().join("fanfare.db");
    world.set("DATABASE__URL", format!("sqlite:{}", path.display()));
    let mut service = world.spawn().await;
    service.terminate().await;
    assert_eq!(service.ended().await.code(), Some(0));
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    mode(program.path(), 0o755);
    for (of_the_file, of_the_directory) in [(0o444, 0o777), (0o444, 0o555)] {
        mode(&path, of_the_file);
        mode(&directory.path().join("fanfare.db.lock"), 0o666);
        mode(directory.path(), of_the_directory);
        let (code, err) = serve_as_nobody(&world, program.path()).await;
        mode(directory.path(), 0o755);
        assert_eq!(code, Some(69), "{err}");
        assert!(err.contains("fanfare.db") && err.lines().count() == 1, "{err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_promised_on_a_file_that_was_taken_away() {
    let world = world().await;
    let (service, before, during) = (world.spawn().await, event("before"), event("during"));
    assert_eq!(post(&service, &before).await, Ok(202));
    let (path, away) = (file(&world), file(&world).with_extension("away"));
    std::fs::rename(&path, &away).unwrap();
    for _ in 0..3 {
        refused(&service, &during).await;
    }
    assert!(!path.exists(), "no empty file takes its place");
    let failed = service.lines_that(|line| line["message"] == "sqlite transaction failed");
    let named =
        |line: &Value| line["error"].as_str().is_some_and(|text| text.contains("is not the file that was opened"));
    assert!(!failed.is_empty() && failed.iter().all(named), "{failed:#?}");
    // Another file there, a restored backup for example, is not written either.
    std::fs::copy(&away, &path).unwrap();
    refused(&service, &during).await;
    std::fs::rename(&away, &path).unwrap();
    assert_eq!(taken(&service, &during).await, 202, "it is back");
    assert_eq!(post(&service, &before).await, Ok(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_a_newer_build_is_refused_and_left_as_it_is() {
    let world = world().await;
    let mut service = world.spawn().await;
    assert_eq!(post(&service, &event("kept")).await, Ok(202));
    service.terminate().await;
    assert_eq!(service.ended().await.code(), Some(0));
    let path = file(&world);
    let mut newer = other_program(&path).await;
    for statement in [
        "INSERT INTO _sqlx_migrations SELECT 9999, description, installed_on, success, checksum, execution_time
         FROM _sqlx_migrations LIMIT 1",
        "INSERT INTO instance VALUES (x'00112233445566778899aabbccddeeff', 1, 1, 9999999999999)",
    ] {
        sqlx::query(statement).execute(&mut newer).await.unwrap();
    }
    newer.close().await.unwrap();
    for (command, code) in [("serve", 69), ("migrate", 1)] {
        let ended = world.run(command).await;
        assert_eq!(ended.code, Some(code), "{command}: {ended:?}");
        assert!(ended.err.contains("migration 9999 is newer than this build"), "{command}: {}", ended.err);
    }
    let mut newer = other_program(&path).await;
    let lease: i64 =
        sqlx::query_scalar("SELECT max(lease_until_ms) FROM instance").fetch_one(&mut newer).await.unwrap();
    assert_eq!(lease, 9_999_999_999_999, "what is not understood is not written");
    newer.close().await.unwrap();
}

//! Owns a PostgreSQL server of one test, to be killed, starved and filled up, and the small disk it may live on.
//! Must never know: who uses it.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

/// Longest wait for a start, which may be a recovery on a busy machine.
const START: Duration = Duration::from_secs(60);
/// Programs of PostgreSQL are not on the PATH on Debian.
const PLACES: [&str; 2] = ["/usr/lib/postgresql", "/usr/pgsql"];
/// Size of a small disk: enough for an empty server, full in a second.
const SMALL_MIB: u64 = 96;

/// A server of one test, running or not. Stopped by its pid when dropped.
pub struct OwnPostgres {
    bin: PathBuf,
    data: PathBuf,
    port: u16,
    settings: Vec<String>,
    running: Option<Child>,
    _dir: TempDir,
    /// Dropped last.
    _disk: Option<SmallDisk>,
}

impl OwnPostgres {
    /// A running server with these settings (`max_connections=20`).
    pub async fn start(settings: &[&str]) -> Self {
        Self::on(None, settings).await
    }

    /// The same on a disk of its own that can be full.
    pub async fn on(disk: Option<SmallDisk>, settings: &[&str]) -> Self {
        let bin = programs();
        let place = disk.as_ref().map_or_else(std::env::temp_dir, |disk| disk.path.clone());
        let dir = TempDir::with_prefix_in("fanfare-postgres-", place).expect("a temporary directory");
        let data = dir.path().join("data");
        if let Some((uid, gid)) = other_user() {
            chown(dir.path(), Some(uid), Some(gid)).expect("root may chown");
        }
        let mut init = as_other_user(&bin.join("initdb"));
        init.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=1", "-D"]);
        let made = init.arg(&data).output().expect("initdb runs");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let settings = settings.iter().map(|s| (*s).to_owned()).collect();
        let mut server = Self { bin, data, port: free_port(), settings, running: None, _dir: dir, _disk: disk };
        server.run().await;
        server
    }

    /// A superuser's URL.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Starts it, on the port it had before; returns when it takes connections.
    pub async fn run(&mut self) {
        let begun = Instant::now();
        while begun.elapsed() < START {
            if !self.alive() {
                self.running = Some(self.spawn());
            }
            if let Ok(connection) = PgConnection::connect(&self.url()).await {
                let _ = connection.close().await;
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("PostgreSQL does not start: {}", std::fs::read_to_string(self.log()).unwrap_or_default());
    }

    fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    fn spawn(&self) -> Child {
        let log = File::options().create(true).append(true).open(self.log()).expect("a log file");
        let mut command = as_other_user(&self.bin.join("postgres"));
        command.arg("-D").arg(&self.data).args(["-p", &self.port.to_string()]);
        let own =
            ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "dynamic_shared_memory_type=mmap"];
        for setting in own.into_iter().chain(self.settings.iter().map(String::as_str)) {
            command.args(["-c", setting]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("postgres runs")
    }

    /// Whether its process is there.
    pub fn alive(&mut self) -> bool {
        self.running.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// What `pg_ctl stop -m immediate` does: no goodbye, and a recovery at the next start.
    pub fn stop_at_once(&mut self) {
        let Some(mut child) = self.running.take() else { return };
        let pid = child.id().to_string();
        let _ = Command::new("kill").args(["-QUIT", &pid]).status();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for OwnPostgres {
    fn drop(&mut self) {
        self.stop_at_once();
    }
}

/// A disk of a few megabytes, to be filled. Unmounted when dropped.
pub struct SmallDisk {
    path: PathBuf,
    mounted: Option<TempDir>,
}

impl SmallDisk {
    /// Mounts one; without the right to, takes one that is small already. A container gives every process a `/dev/shm` of
    /// 64 MB, and that is as good.
    pub fn make() -> Self {
        if let Some(path) = std::env::var_os("FANFARE_TEST_SMALL_DISK") {
            return Self { path: path.into(), mounted: None };
        }
        let dir = TempDir::with_prefix("fanfare-disk-").expect("a temporary directory");
        let options = format!("size={SMALL_MIB}m,mode=1777");
        let place = dir.path().to_str().expect("UTF-8");
        let mount = ["mount", "-t", "tmpfs", "-o", &options, "tmpfs", place];
        if quietly(&mount) || quietly(&[&["sudo", "-n"], mount.as_slice()].concat()) {
            return Self { path: dir.path().to_owned(), mounted: Some(dir) };
        }
        let shared = Path::new("/dev/shm");
        assert!(
            is_small(shared),
            "a full disk needs a small disk: run this as root, or with sudo that asks nothing, or in a container with \
             --cap-add SYS_ADMIN or with --shm-size 96m, or name a directory on a disk of 64 to 256 MB of its own in \
             FANFARE_TEST_SMALL_DISK"
        );
        Self { path: shared.to_owned(), mounted: None }
    }

    /// Fills it to the last byte, until the answer is dropped.
    pub fn fill(&self) -> Filler {
        let mut filler = tempfile::NamedTempFile::new_in(&self.path).expect("a file on the small disk");
        let block = vec![7; 1 << 16];
        for _ in 0..(1 << 14) {
            match filler.write(&block) {
                Ok(_) => {}
                Err(full) if full.kind() == ErrorKind::StorageFull => return Filler { _file: filler },
                Err(other) => panic!("filling {}: {other}", self.path.display()),
            }
        }
        panic!("{} is not small", self.path.display());
    }
}

impl OwnPostgres {
    /// Fills its disk.
    pub fn fill_disk(&self) -> Filler {
        self._disk.as_ref().expect("a server on a small disk").fill()
    }
}

/// What fills a disk.
pub struct Filler {
    _file: tempfile::NamedTempFile,
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Some(dir) = &self.mounted {
            let place = dir.path().to_str().expect("UTF-8");
            let _ = quietly(&["umount", "-l", place]) || quietly(&["sudo", "-n", "umount", "-l", place]);
        }
    }
}

fn quietly(words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn is_small(path: &Path) -> bool {
    let asked = Command::new("df").args(["-Pk"]).arg(path).output();
    let Ok(answer) = asked else { return false };
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    let blocks = text.lines().nth(1).and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    blocks.is_some_and(|kib| (60 * 1024..=256 * 1024).contains(&kib))
}

/// The newest directory with all we need.
fn programs() -> PathBuf {
    let versions = PLACES.iter().filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten();
    let mut bins: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    bins.sort();
    bins.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let all = |bin: &&PathBuf| ["initdb", "postgres"].iter().all(|name| bin.join(name).is_file());
    bins.iter().rev().find(all).expect("initdb and postgres are not there: run tests/run, which installs them").clone()
}

/// PostgreSQL refuses to run as root: the user and group it runs as then.
fn other_user() -> Option<(u32, u32)> {
    if std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() != 0) {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("users");
    let find = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let user = find("postgres").or_else(|| find("nobody"));
    Some(user.expect("running as root, and there is neither a user postgres nor nobody to run PostgreSQL as"))
}

fn as_other_user(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/");
    if let Some((uid, gid)) = other_user() {
        command.uid(uid).gid(gid);
    }
    command
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

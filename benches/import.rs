//! How fast devices are imported, and in how much memory: the real binary, its real API, both databases and formats.
//!
//! `cargo bench --bench import` imports a million devices each time, into an empty database, and then the same file once
//! more; `-- --rows 100000` fewer. It exits with 1 below 20,000 rows a second, or when the service takes more memory than an
//! import may. `FANFARE_TEST_POSTGRES_URL` is the URL of a PostgreSQL where databases may be made; they are dropped again.
//! The CPU time told is that of the service, without PostgreSQL's own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use fanfare::api::Scope;
use fanfare::api::keys::generate;
use fanfare::client::Client;
use fanfare::emulator::{Emulator, Settings};
use fanfare::wire::Format;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

type Failed = Box<dyn std::error::Error>;

/// Rows per second below which the promise of the README does not hold.
const FLOOR_PER_S: f64 = 20_000.0;

/// What the service may grow by while it imports, kB. A batch is at most 2,000 rows or 1 MiB, and SQLite keeps 64 MiB of pages.
const GROWTH_KB: u64 = 100_000;

/// Lines of one part.
const PART: u64 = 20_000;

/// Ticks of CPU time in a second (`getconf CLK_TCK`, which is 100 on every Linux of today).
const TICKS_PER_S: f64 = 100.0;

/// A service on one database.
struct Service {
    child: Child,
    url: String,
    key: String,
}

impl Service {
    /// Starts the binary and waits until it says where it serves.
    fn start(database: &str, emulator: &Emulator) -> Result<Self, Failed> {
        let (key, entry) = generate("bench", Scope::ALL).map_err(|_| "no key")?;
        let settings = [
            ("FANFARE__API__LISTEN", "127.0.0.1:0"),
            ("FANFARE__OPS__LISTEN", "127.0.0.1:0"),
            ("FANFARE__API__KEYS", &entry),
            ("FANFARE__DATABASE__URL", database),
            ("FANFARE__FCM__ENDPOINT", emulator.endpoint()),
            ("FANFARE__FCM__CREDENTIALS", &emulator.key_json()),
            ("LOG_FORMAT", "json"),
        ];
        let binary = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fanfare"));
            command.env_clear().envs(settings);
            command
        };
        if !binary().arg("migrate").status()?.success() {
            return Err("fanfare migrate failed".into());
        }
        let mut child = binary().arg("serve").stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
        let url = loop {
            let line: serde_json::Value = serde_json::from_str(&lines.next().ok_or("it does not serve")??)?;
            if line["message"] == "serving" {
                break format!("http://{}", line["api"].as_str().unwrap_or_default());
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { child, url, key })
    }

    /// CPU time it has used so far, s: fields 14 and 15 of `/proc/PID/stat`, whose second one ends with a bracket.
    fn cpu_s(&self) -> Result<f64, Failed> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(')').ok_or("no such line")?;
        let ticks: Vec<&str> = fields.split_whitespace().skip(11).take(2).collect();
        Ok(ticks.iter().map(|ticks| ticks.parse::<f64>()).sum::<Result<f64, _>>()? / TICKS_PER_S)
    }

    /// A line of `/proc/PID/status` in kB.
    fn memory_kb(&self, what: &str) -> Result<u64, Failed> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(what)).ok_or("no such line")?;
        Ok(line.trim_matches([':', ' ', '\t', 'k', 'B']).parse()?)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line(format: Format, kind: &str, n: u64) -> String {
    let (id, user) = (format!("{kind}-{n:08}"), n / 2);
    // As long as a token of FCM is, and as little ordered.
    let token = format!("{:016x}{:0>120}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15), format!("{kind}{n}"));
    let (team, player) = (n % 400, n % 9_973);
    match format {
        Format::Csv => {
            format!("{id},u{user},{token},android,pt-BR,team:t{team}|player:p{player}=goal+red_card,corner\n")
        }
        Format::Ndjson => format!(
            "{{\"id\":\"{id}\",\"user_id\":\"u{user}\",\"token\":\"{token}\",\"platform\":\"android\",\"locale\":\"pt-BR\",\
             \"follows\":[\"team:t{team}\",{{\"subject\":\"player:p{player}\",\"types\":[\"goal\",\"red_card\"]}}],\
             \"muted\":[\"corner\"]}}\n"
        ),
    }
}

/// One part of a file, with the header CSV needs.
fn part(format: Format, first: u64, rows: u64) -> Vec<u8> {
    let header = if format == Format::Csv { "id,user_id,token,platform,locale,follows,muted\n" } else { "" };
    let mut text = header.to_owned();
    for n in first..rows.min(first + PART) {
        text.push_str(&line(format, format.as_str(), n));
    }
    text.into_bytes()
}

/// Imports `rows` devices, all new or all known; rows per second. The next part is written while one is imported: what is
/// measured is the service, not the making of a file.
async fn import(service: &Service, format: Format, rows: u64, new: bool) -> Result<f64, Failed> {
    let client = Client::new(&service.url, service.key.clone().into())?;
    let mut next = part(format, 0, rows);
    let begun = Instant::now();
    let (mut imported, mut updated) = (0, 0);
    for first in (0..rows).step_by(usize::try_from(PART)?) {
        let following = tokio::task::spawn_blocking(move || part(format, first + PART, rows));
        let answer = client.import_part(format, false, next).await?;
        imported += answer.imported;
        updated += answer.updated;
        next = following.await?;
    }
    let per_s = rows as f64 / begun.elapsed().as_secs_f64();
    let as_expected = (imported, updated) == if new { (rows, 0) } else { (0, rows) };
    if as_expected { Ok(per_s) } else { Err(format!("{imported} of {rows} were imported, {updated} updated").into()) }
}

/// Imports one file twice.
async fn measure(engine: &str, service: &Service, format: Format, rows: u64) -> Result<bool, Failed> {
    let before = service.memory_kb("VmRSS")?;
    let mut fine = true;
    for (what, new) in [("new", true), ("again", false)] {
        let cpu = service.cpu_s()?;
        let per_s = import(service, format, rows, new).await?;
        let cpu = (service.cpu_s()? - cpu) * 1e6 / rows as f64;
        let peak = service.memory_kb("VmHWM")?;
        let grown = peak.saturating_sub(before);
        println!(
            "{engine:<8} {:<6} {what:<5} {rows} rows  {per_s:>7.0} rows/s  {cpu:>5.1} us of CPU a row  peak {peak} kB \
             ({grown} kB grown)",
            format.as_str()
        );
        fine &= per_s >= FLOOR_PER_S && grown <= GROWTH_KB;
    }
    Ok(fine)
}

async fn sqlite(emulator: &Emulator, format: Format, rows: u64) -> Result<bool, Failed> {
    let directory = tempfile::tempdir()?;
    let file = format!("sqlite:{}", directory.path().join("bench.db").display());
    let service = Service::start(&file, emulator)?;
    measure("sqlite", &service, format, rows).await
}

async fn postgres(emulator: &Emulator, format: Format, rows: u64) -> Result<bool, Failed> {
    let server = std::env::var("FANFARE_TEST_POSTGRES_URL").map_err(|_| "FANFARE_TEST_POSTGRES_URL is not set")?;
    let name = format!("fanfare_bench_{}", std::process::id());
    let mut admin = PgConnection::connect(&server).await?;
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
    let (base, _) = server.rsplit_once('/').ok_or("FANFARE_TEST_POSTGRES_URL names no database")?;
    let measured = async {
        let service = Service::start(&format!("{base}/{name}"), emulator)?;
        measure("postgres", &service, format, rows).await
    };
    let measured = measured.await;
    admin.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await?;
    measured
}

async fn run(rows: u64) -> Result<bool, Failed> {
    let emulator = Emulator::start(Settings::default())?;
    let mut fine = true;
    for format in [Format::Ndjson, Format::Csv] {
        fine &= sqlite(&emulator, format, rows).await?;
        fine &= postgres(&emulator, format, rows).await?;
    }
    Ok(fine)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let asked = args.iter().position(|arg| arg == "--rows").and_then(|at| args.get(at + 1)?.parse().ok());
    let rows = asked.unwrap_or(1_000_000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Failed::from).and_then(|runtime| runtime.block_on(run(rows))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("slower than {FLOOR_PER_S} rows/s, or more than {GROWTH_KB} kB grown");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

//! How fast devices are imported, and in how much memory: the real binary, its real API, both databases and formats.
//!
//! `cargo bench --bench import` imports a million devices each time; `-- --rows 100000` fewer. It exits with 1 below
//! 20,000 rows a second, or when the service takes more memory than an import may. `FANFARE_TEST_POSTGRES_URL` is the URL
//! of a PostgreSQL where a database may be made; it is dropped again.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use bytes::Bytes;
use fanfare::api::Scope;
use fanfare::api::keys::generate;
use fanfare::client::Client;
use fanfare::emulator::{Emulator, Settings};
use fanfare::wire::Format;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

type Failed = Box<dyn std::error::Error>;

/// Rows per second below which the promise of the README does not hold.
const FLOOR_PER_S: f64 = 20_000.0;

/// What the service may grow by while it imports, kB. A batch is 1,000 rows of at most 64 KiB.
const GROWTH_KB: u64 = 100_000;

/// Lines of one part.
const PART: u64 = 20_000;

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

/// Imports `rows` new devices; rows per second.
async fn import(service: &Service, format: Format, rows: u64) -> Result<f64, Failed> {
    let client = Client::new(&service.url, service.key.clone().into())?;
    let begun = Instant::now();
    let mut imported = 0;
    for first in (0..rows).step_by(usize::try_from(PART)?) {
        let header = if format == Format::Csv { "id,user_id,token,platform,locale,follows,muted\n" } else { "" };
        let mut text = header.to_owned();
        for n in first..rows.min(first + PART) {
            text.push_str(&line(format, format.as_str(), n));
        }
        let answer = client.import_part(format, false, Bytes::from(text).to_vec()).await?;
        imported += answer.imported;
    }
    let per_s = rows as f64 / begun.elapsed().as_secs_f64();
    if imported == rows { Ok(per_s) } else { Err(format!("{imported} of {rows} were imported").into()) }
}

async fn measure(engine: &str, service: &Service, rows: u64) -> Result<bool, Failed> {
    let before = service.memory_kb("VmRSS")?;
    let mut fine = true;
    for format in [Format::Ndjson, Format::Csv] {
        let per_s = import(service, format, rows).await?;
        let peak = service.memory_kb("VmHWM")?;
        let grown = peak.saturating_sub(before);
        println!(
            "{engine:<8} {:<6} {rows} rows  {per_s:>7.0} rows/s  peak {peak} kB ({grown} kB grown)",
            format.as_str()
        );
        fine &= per_s >= FLOOR_PER_S && grown <= GROWTH_KB;
    }
    Ok(fine)
}

async fn run(rows: u64) -> Result<bool, Failed> {
    let emulator = Emulator::start(Settings::default())?;
    let directory = tempfile::tempdir()?;
    let file = format!("sqlite:{}", directory.path().join("bench.db").display());
    let service = Service::start(&file, &emulator)?;
    let sqlite = measure("sqlite", &service, rows).await?;
    drop(service);

    let server = std::env::var("FANFARE_TEST_POSTGRES_URL").map_err(|_| "FANFARE_TEST_POSTGRES_URL is not set")?;
    let name = format!("fanfare_bench_{}", std::process::id());
    let mut admin = PgConnection::connect(&server).await?;
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
    let (base, _) = server.rsplit_once('/').ok_or("FANFARE_TEST_POSTGRES_URL names no database")?;
    let postgres = async {
        let service = Service::start(&format!("{base}/{name}"), &emulator)?;
        measure("postgres", &service, rows).await
    };
    let postgres = postgres.await;
    admin.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await?;
    Ok(sqlite && postgres?)
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

//! How fast devices are imported, and in how much memory: the real binary, its real API, both databases and formats.
//!
//! `cargo bench --bench import` imports a million devices each time, into an empty database, and then the same file once
//! more; `-- --rows 100000` fewer, `--only postgres` or `--only sqlite` one database, `--format csv` or `--format ndjson` one
//! format. It exits with 1 below 20,000 rows a second, or when the service takes more memory than an import may.
//! Beside it stands what the database alone reaches in the same run: rows of the same shape that it makes itself and inserts
//! into the same tables, 2,000 in a transaction. That is a share of the disk of this machine, and no work of ours. `FANFARE_TEST_POSTGRES_URL` is the URL of a PostgreSQL where databases may be made; they are dropped again.
//! The CPU time told is that of the service, without PostgreSQL's own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use fanfare::api::Scope;
use fanfare::api::keys::generate;
use fanfare::client::Client;
use fanfare::emulator::{Emulator, Settings};
use fanfare::wire::Format;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, SqliteConnection};

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
        migrate(database)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_fanfare"));
        let mut child = command.env_clear().envs(settings).arg("serve").stdout(Stdio::piped()).spawn()?;
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

fn migrate(database: &str) -> Result<(), Failed> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanfare"));
    let done = command.env_clear().env("FANFARE__DATABASE__URL", database).arg("migrate").status()?;
    if done.success() { Ok(()) } else { Err("fanfare migrate failed".into()) }
}

/// Rows of one transaction of the database alone, as many as a batch of an import has.
const BATCH: i64 = 2_000;

const BARE_POSTGRES: &str = "
WITH d AS (
    INSERT INTO device (id, user_id, token, platform, locale, muted, registered_ms, created_ms, follows_ms)
    SELECT 'bare-' || lpad(n::text, 8, '0'), 'u' || n / 2, left(md5(n::text), 16) || lpad('bare' || n, 120, '0'), 1, 'pt-BR',
           16, 1, 1, 1
    FROM generate_series($1::bigint, $2::bigint) AS n RETURNING device_key)
INSERT INTO follow (subject, device_key, wanted, kinds)
SELECT f.subject, d.device_key, 64, 64 FROM d,
    LATERAL (VALUES ('team:t' || d.device_key % 400), ('player:p' || d.device_key % 9973)) AS f(subject)
ORDER BY 1, 2";

const BARE_SQLITE: [&str; 2] = [
    "WITH RECURSIVE s(n) AS (VALUES ($1) UNION ALL SELECT n + 1 FROM s WHERE n < $2)
     INSERT INTO device (device_key, id, user_id, token, platform, locale, muted, registered_ms, created_ms, follows_ms)
     SELECT n + 1, printf('bare-%08d', n), 'u' || (n / 2), hex(randomblob(8)) || printf('%0120d', n), 1, 'pt-BR', 16, 1, 1, 1
     FROM s",
    "WITH RECURSIVE s(n) AS (VALUES ($1) UNION ALL SELECT n + 1 FROM s WHERE n < $2)
     INSERT INTO follow (subject, device_key, wanted, kinds)
     SELECT 'team:t' || (n % 400), n + 1, 64, 64 FROM s UNION ALL SELECT 'player:p' || (n % 9973), n + 1, 64, 64 FROM s
     ORDER BY 1, 2",
];

/// First and last row of each transaction.
fn batches(rows: u64) -> impl Iterator<Item = (i64, i64)> {
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    (0..rows).step_by(usize::try_from(BATCH).unwrap_or(1)).map(move |first| (first, rows.min(first + BATCH) - 1))
}

/// What PostgreSQL alone reaches, rows per second.
async fn bare_postgres(url: &str, rows: u64) -> Result<f64, Failed> {
    migrate(url)?;
    let mut conn = PgConnection::connect(url).await?;
    let begun = Instant::now();
    for (first, last) in batches(rows) {
        sqlx::query(BARE_POSTGRES).bind(first).bind(last).execute(&mut conn).await?;
    }
    Ok(rows as f64 / begun.elapsed().as_secs_f64())
}

/// What SQLite alone reaches with the settings of the service, rows per second.
async fn bare_sqlite(url: &str, rows: u64) -> Result<f64, Failed> {
    migrate(url)?;
    let mut conn = SqliteConnection::connect(url).await?;
    let settings = "PRAGMA synchronous = FULL; PRAGMA cache_size = -65536; PRAGMA wal_autocheckpoint = 32000";
    conn.execute(settings).await?;
    let begun = Instant::now();
    for (first, last) in batches(rows) {
        let mut tx = conn.begin().await?;
        for statement in BARE_SQLITE {
            sqlx::query(statement).bind(first).bind(last).execute(&mut *tx).await?;
        }
        tx.commit().await?;
    }
    Ok(rows as f64 / begun.elapsed().as_secs_f64())
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

/// Imports one file twice; `bare` = what the database alone reaches.
async fn measure(engine: &str, service: &Service, format: Format, rows: u64, bare: f64) -> Result<bool, Failed> {
    println!("{engine:<8} alone        {rows} rows  {bare:>7.0} rows/s");
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
             ({grown} kB grown)  {:.2} of the database alone",
            format.as_str(),
            per_s / bare
        );
        fine &= per_s >= FLOOR_PER_S && grown <= GROWTH_KB;
    }
    Ok(fine)
}

async fn sqlite(emulator: &Emulator, format: Format, rows: u64) -> Result<bool, Failed> {
    let directory = tempfile::tempdir()?;
    let file = |name: &str| format!("sqlite:{}", directory.path().join(name).display());
    let bare = bare_sqlite(&file("bare.db"), rows).await?;
    let service = Service::start(&file("bench.db"), emulator)?;
    measure("sqlite", &service, format, rows, bare).await
}

/// An empty database, gone again when the work with it is done.
async fn with_database<T>(
    server: &str,
    name: &str,
    work: impl AsyncFnOnce(String) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let mut admin = PgConnection::connect(server).await?;
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
    let (base, _) = server.rsplit_once('/').ok_or("FANFARE_TEST_POSTGRES_URL names no database")?;
    let done = work(format!("{base}/{name}")).await;
    admin.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await?;
    done
}

async fn postgres(emulator: &Emulator, format: Format, rows: u64) -> Result<bool, Failed> {
    let server = std::env::var("FANFARE_TEST_POSTGRES_URL").map_err(|_| "FANFARE_TEST_POSTGRES_URL is not set")?;
    let name = format!("fanfare_bench_{}", std::process::id());
    let bare = with_database(&server, &name, async |url| bare_postgres(&url, rows).await).await?;
    with_database(&server, &name, async |url| {
        let service = Service::start(&url, emulator)?;
        measure("postgres", &service, format, rows, bare).await
    })
    .await
}

async fn run(rows: u64, only: Option<&str>, formats: &[Format]) -> Result<bool, Failed> {
    let emulator = Emulator::start(Settings::default())?;
    let mut fine = true;
    for format in formats {
        if only.is_none_or(|engine| engine == "sqlite") {
            fine &= sqlite(&emulator, *format, rows).await?;
        }
        if only.is_none_or(|engine| engine == "postgres") {
            fine &= postgres(&emulator, *format, rows).await?;
        }
    }
    Ok(fine)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let given =
        |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1)).map(String::as_str);
    let rows = given("--rows").and_then(|rows| rows.parse().ok()).unwrap_or(1_000_000);
    let only = given("--only");
    let formats: &[Format] = match given("--format") {
        Some("ndjson") => &[Format::Ndjson],
        Some("csv") => &[Format::Csv],
        _ => &[Format::Ndjson, Format::Csv],
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Failed::from).and_then(|runtime| runtime.block_on(run(rows, only, formats))) {
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

//! Owns the `emulator` command: options, what it prints, when it ends.
//! Must never know: how the emulator works.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Failure;
use crate::emulator::{Control, Emulator, EmulatorError, Settings, answers, token_answers};

/// Runs a stand-in for FCM, to point a sender at: TLS or plain HTTP/2, OAuth, quota, latency, faults by token.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = after_help())]
pub struct EmulatorArgs {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8790", value_name = "ADDR")]
    pub listen: SocketAddr,
    /// Name or address clients reach it by, for certificate and token_uri [default: that of --listen]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// TLS with a certificate made at start, instead of plain HTTP
    #[arg(long)]
    pub tls: bool,
    /// Where to write the authority clients have to trust (PEM) [default: only served, at /emulator/ca.pem]
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub ca_out: Option<PathBuf>,
    /// Where to write a service-account key for this emulator (JSON, readable by you only) [default: only served, at
    /// /emulator/key.json]
    #[arg(long, value_name = "FILE")]
    pub write_key: Option<PathBuf>,
    /// The one project that exists
    #[arg(long, default_value = "demo-project", value_name = "ID")]
    pub project: String,
    /// Latency of every answer, milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub latency_ms: u64,
    /// Up to this much more, milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub jitter_ms: u64,
    /// Concurrent streams per HTTP/2 connection
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_streams: u32,
    /// Sends per second before it answers 429; 0 = no quota
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub quota_per_s: u32,
    /// Sends per minute before it answers 429; 0 = no quota
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub quota_per_minute: u32,
    /// Lifetime of access tokens, seconds
    #[arg(long, default_value_t = 3600, value_name = "S")]
    pub token_lifetime_s: u64,
    /// Takes sends without a bearer token too
    #[arg(long)]
    pub no_auth: bool,
    /// A second listener, plain HTTP, for /emulator/ only, that no fault touches [default: none]
    #[arg(long, value_name = "ADDR")]
    pub control: Option<SocketAddr>,
    /// An HTTP proxy that leads every CONNECT to this emulator, for SDKs whose endpoint is fixed [default: none]
    #[arg(long, value_name = "ADDR", requires = "tls")]
    pub proxy: Option<SocketAddr>,
    /// Also appends every request to this file, NDJSON [default: memory only, at /emulator/log]
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// Runs until Ctrl-C or SIGTERM.
///
/// # Errors
/// [`Failure::Unavailable`] when the address is taken, [`Failure::Runtime`] when it cannot start otherwise, or cannot
/// write a file it was asked for.
pub async fn run(args: EmulatorArgs) -> Result<(), Failure> {
    run_until(args, signalled()).await
}

async fn run_until(args: EmulatorArgs, stop: impl Future<Output = std::io::Result<()>>) -> Result<(), Failure> {
    let emulator = Emulator::start(settings(&args)).map_err(not_started)?;
    if let (Some(path), Some(pem)) = (&args.ca_out, emulator.ca_pem()) {
        std::fs::write(path, pem).map_err(|fault| unwritten(path, &fault))?;
    }
    if let Some(path) = &args.write_key {
        write_private(path, &emulator.key_json()).map_err(|fault| unwritten(path, &fault))?;
    }
    print!("{}", welcome(&emulator, &args));
    stop.await.map_err(|fault| Failure::Runtime(format!("cannot wait for signals: {fault}")))?;
    let stats = emulator.stats();
    emulator.stop().await;
    println!(
        "stopped: {} requests, {} accepted, {} duplicates",
        stats.requests, stats.accepted, stats.duplicates_accepted
    );
    Ok(())
}

/// A port that is taken is a dependency that is not there: an exit code of its own tells scripts.
fn not_started(fault: EmulatorError) -> Failure {
    match &fault {
        EmulatorError::Listen { source, .. } => {
            let hint = if source.kind() == std::io::ErrorKind::AddrInUse {
                "; another emulator may be running: end it, or give --listen (or --control, --proxy) another port, 0 takes a free one"
            } else {
                "; give --listen (or --control, --proxy) an address of this machine and a port you may use"
            };
            Failure::Unavailable(format!("{fault}{hint}"))
        }
        _ => Failure::Runtime(fault.to_string()),
    }
}

fn settings(args: &EmulatorArgs) -> Settings {
    Settings {
        listen: args.listen,
        host: args.host.clone(),
        tls: args.tls,
        project: args.project.clone(),
        max_streams: args.max_streams,
        control_listen: args.control,
        proxy_listen: args.proxy,
        log_file: args.log.clone(),
        control: Control {
            latency_ms: Some(args.latency_ms),
            jitter_ms: Some(args.jitter_ms),
            quota_per_s: Some(args.quota_per_s),
            quota_per_minute: Some(args.quota_per_minute),
            check_auth: Some(!args.no_auth),
            token_lifetime_s: Some(args.token_lifetime_s),
            ..Control::default()
        },
    }
}

/// What to do now, with commands that work as they stand.
fn welcome(emulator: &Emulator, args: &EmulatorArgs) -> String {
    let endpoint = emulator.endpoint();
    let key = args.write_key.as_deref().unwrap_or(Path::new("key.json")).display();
    let ca = args.ca_out.as_deref().unwrap_or(Path::new("ca.pem")).display();
    let curl = if args.tls { "curl -sk" } else { "curl -s" };
    let mut lines = vec![format!("FCM emulator for project `{}` on {endpoint}\n", emulator.project())];
    if args.write_key.is_none() {
        lines.push(format!("get its key:    {curl} {endpoint}/emulator/key.json -o {key}"));
    }
    if args.tls && args.ca_out.is_none() {
        lines.push(format!("and authority:  {curl} {endpoint}/emulator/ca.pem -o {ca}"));
    }
    lines
        .push(format!("point to it:    export FANFARE__FCM__ENDPOINT={endpoint} GOOGLE_APPLICATION_CREDENTIALS={key}"));
    if args.tls {
        lines.push(format!("                export FANFARE__FCM__CA_FILE={ca}"));
    }
    lines.push(format!("see what came:  {curl} {endpoint}/emulator/stats"));
    lines.push(format!("                {curl} {endpoint}/emulator/log"));
    let outage = r#"{"rules":[{"prefix":"","answer":"unavailable"}]}"#;
    lines.push(format!("make an outage: {curl} {endpoint}/emulator/control -d '{outage}'"));
    lines.push(format!("end it:         {curl} {endpoint}/emulator/control -d '{{\"calm\":true}}'"));
    if let Some(control) = emulator.control_addr() {
        lines.push(format!("whatever fails: http://{control}/emulator/control"));
    }
    if let Some(proxy) = emulator.proxy_addr() {
        lines.push(format!("for an SDK:     export HTTPS_PROXY=http://{proxy} GOOGLE_APPLICATION_CREDENTIALS={key}"));
    }
    lines.push(
        "\nFaults by device token: dead-1, quota-3-1, flakyhang-1 ... (--help lists them). Ctrl-C ends it.\n".into(),
    );
    lines.join("\n")
}

fn after_help() -> String {
    let mut text = String::from(
        "A device token that starts with NAME- gets the answer NAME, flakyNAME- for the first attempt only;\n\
         any other token gets `ok`. 429-, 500-, 503- are quota-, internal-, unavailable-.\n\n",
    );
    for (name, about) in answers() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<22} {about}", format!("{name}-"));
    }
    text.push_str("\nThe token endpoint gives any of these, or one of its own, when told by `oauth_answer`:\n\n");
    for (name, about) in token_answers() {
        let _ = writeln!(text, "  {name:<22} {about}");
    }
    text
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut open = std::fs::OpenOptions::new();
    open.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

fn unwritten(path: &Path, fault: &std::io::Error) -> Failure {
    Failure::Runtime(format!("cannot write {}: {fault}", path.display()))
}

async fn signalled() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: EmulatorArgs,
    }

    fn parse(line: &[&str]) -> Result<EmulatorArgs, clap::Error> {
        Line::try_parse_from([&["emulator"], line].concat()).map(|line| line.args)
    }

    #[test]
    fn the_long_help_names_every_answer() {
        let help = Line::command().after_long_help(after_help()).render_long_help().to_string();
        for (name, about) in answers() {
            assert!(help.contains(&format!("  {name}-")) && help.contains(about), "{name}");
        }
        for (name, about) in token_answers() {
            assert!(help.contains(&format!("  {name} ")) && help.contains(about), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_as_usage() {
        assert!(parse(&["--ca-out", "ca.pem"]).is_err(), "an authority without TLS");
        assert!(parse(&["--proxy", "127.0.0.1:0"]).is_err(), "a proxy to something without TLS");
        assert!(parse(&["--max-streams", "0"]).is_err(), "no streams at all");
        assert!(parse(&["--listen", "somewhere"]).is_err());
    }

    #[tokio::test]
    async fn it_writes_its_files_serves_and_ends_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let (key, ca) = (dir.path().join("key.json"), dir.path().join("ca.pem"));
        let paths = [key.to_str().unwrap(), ca.to_str().unwrap()];
        let line = ["--listen", "127.0.0.1:0", "--tls", "--write-key", paths[0], "--ca-out", paths[1]];
        let served = async {
            let key: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&key)?)?;
            let authority = reqwest::Certificate::from_pem(&std::fs::read(&ca)?).map_err(std::io::Error::other)?;
            let client = reqwest::Client::builder().tls_certs_only([authority]).build().unwrap();
            let health = key["token_uri"].as_str().unwrap().replace("/token", "/emulator/healthz");
            let answer = client.get(health).send().await.map_err(std::io::Error::other)?;
            assert_eq!(answer.status(), 200);
            Ok(())
        };
        run_until(parse(&line).unwrap(), served).await.unwrap();
        assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn a_taken_port_is_one_line_that_names_it_and_says_what_to_do() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = taken.local_addr().unwrap().to_string();
        let fault = run_until(parse(&["--listen", &addr]).unwrap(), async { Ok(()) }).await.unwrap_err();
        let Failure::Unavailable(text) = &fault else { panic!("{fault:?}") };
        assert!(text.contains(&addr) && text.contains("--listen") && text.lines().count() == 1, "{text}");
        assert_eq!(fault.exit_code(), 69);
    }
}

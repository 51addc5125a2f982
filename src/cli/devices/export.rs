//! Owns `fanfare devices export`: a whole file or none.
//! Must never know: how a device is written down, but for the line that ends an export.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::json;

use super::format_of;
use super::progress::Progress;
use crate::cli::Failure;
use crate::cli::target::{Target, print_json};
use crate::domain::recipient::DeviceState;
use crate::wire::Format;

pub(super) const EXAMPLE: &str = r#"The last line says how many devices there were: {"end":N}, in CSV #end,N. A file without it was cut off.
The file holds device tokens: whoever has it and your FCM key can send to these phones."#;

/// What to export, and where to.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The service.
    #[command(flatten)]
    target: Target,
    /// ndjson or csv [default: csv for an output called .csv, else ndjson]
    #[arg(long)]
    format: Option<String>,
    /// Only devices of this state [default: all]
    #[arg(long, value_parser = PossibleValuesParser::new(DeviceState::ALL.iter().map(|state| state.as_str())))]
    state: Option<String>,
    /// The file; it appears when the export is complete [default: standard output]
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Replace the file when it is there; of a link, the file it names.
    #[arg(long)]
    force: bool,
}

/// Exports all devices. An interrupt ends it as a fault does, for the part of a file to be removed: it holds tokens.
pub(super) async fn run(args: ExportArgs) -> Result<(), Failure> {
    if args.output.is_none() {
        return export(args).await;
    }
    tokio::select! {
        done = export(args) => done,
        _ = tokio::signal::ctrl_c() => Err(Failure::Runtime("interrupted; nothing was written".to_owned())),
    }
}

async fn export(args: ExportArgs) -> Result<(), Failure> {
    let format = format_of(args.format.as_ref(), args.output.as_deref())?;
    let client = args.target.client()?;
    let mut sink = Sink::open(args.output.as_deref(), args.force)?;
    let mut pieces = client.export(format, args.state.as_ref()).await.map_err(|fault| args.target.failure(fault))?;
    let mut progress = Progress::new(None);
    let (mut end, mut bytes) = (End::new(format), 0);
    loop {
        let next = pieces.next().await.map_err(|fault| args.target.failure(fault).and("\n  the export broke off"))?;
        let Some(piece) = next else { break };
        end.see(&piece);
        bytes += piece.len() as u64;
        if !sink.write(&piece)? {
            return Ok(());
        }
        progress.at(bytes, end.devices());
    }
    drop(progress);
    let devices =
        end.check().ok_or_else(|| Failure::Runtime("the export was cut off: its last line is missing".into()))?;
    sink.finish(args.force)?;
    if args.target.json && args.output.is_some() {
        return print_json(&json!({ "devices": devices, "bytes": bytes }));
    }
    let what = if devices == 1 { "device" } else { "devices" };
    let _ = writeln!(io::stderr(), "{devices} {what} exported");
    Ok(())
}

/// Where the export goes.
enum Sink {
    Stdout,
    /// A file beside the one that is wanted, until it is complete.
    Partial {
        file: File,
        partial: PathBuf,
        wanted: PathBuf,
        done: bool,
    },
}

impl Sink {
    fn open(output: Option<&Path>, force: bool) -> Result<Self, Failure> {
        let Some(wanted) = output else { return Ok(Self::Stdout) };
        refuse_to_replace(wanted, force)?;
        let wanted = behind_links(wanted)?;
        let mut name = wanted.file_name().unwrap_or_default().to_owned();
        // Two exports to one file do not share it. In containers they may have the same process id.
        name.push(format!(".{}-{}.partial", std::process::id(), uuid::Uuid::new_v4().simple()));
        let partial = wanted.with_file_name(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // Device tokens are in it.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&partial).map_err(|fault| unwritable(&partial, &fault))?;
        Ok(Self::Partial { file, partial, wanted, done: false })
    }

    /// `false` when the reader has gone, which is no failure (`| head`).
    fn write(&mut self, piece: &[u8]) -> Result<bool, Failure> {
        match self {
            Self::Stdout => match io::stdout().lock().write_all(piece) {
                Err(fault) if fault.kind() == io::ErrorKind::BrokenPipe => Ok(false),
                Err(fault) => Err(unwritable(Path::new("stdout"), &fault)),
                Ok(()) => Ok(true),
            },
            Self::Partial { file, partial, .. } => {
                file.write_all(piece).map_err(|fault| unwritable(partial, &fault))?;
                Ok(true)
            }
        }
    }

    fn finish(&mut self, force: bool) -> Result<(), Failure> {
        match self {
            Self::Stdout => io::stdout().lock().flush().map_err(|fault| unwritable(Path::new("stdout"), &fault)),
            Self::Partial { file, partial, wanted, done } => {
                refuse_to_replace(wanted, force)?;
                let kept = file.sync_all().and_then(|()| std::fs::rename(partial.as_path(), wanted.as_path()));
                *done = kept.is_ok();
                kept.map_err(|fault| unwritable(wanted, &fault))
            }
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Self::Partial { partial, done: false, .. } = self {
            let _ = std::fs::remove_file(partial);
        }
    }
}

fn refuse_to_replace(wanted: &Path, force: bool) -> Result<(), Failure> {
    let shown = wanted.display();
    match std::fs::metadata(wanted) {
        // A device or a pipe would become a file of tokens.
        Ok(there) if !there.is_file() => Err(Failure::Runtime(format!(
            "{shown} is no regular file, so it is not replaced: leave out --output and redirect standard output instead"
        ))),
        Ok(_) if !force => Err(Failure::Runtime(format!("{shown} is there already; --force replaces it"))),
        _ => Ok(()),
    }
}

/// The file that a link names, so that the link stays one.
fn behind_links(wanted: &Path) -> Result<PathBuf, Failure> {
    if std::fs::symlink_metadata(wanted).is_err() {
        return Ok(wanted.to_owned());
    }
    std::fs::canonicalize(wanted).map_err(|fault| unwritable(wanted, &fault))
}

fn unwritable(path: &Path, fault: &io::Error) -> Failure {
    Failure::Runtime(format!("{} cannot be written: {fault}", path.display()))
}

/// Sees whether an export came to its end.
struct End {
    format: Format,
    tail: Vec<u8>,
    lines: u64,
}

impl End {
    /// More than the longest last line.
    const TAIL: usize = 64;

    fn new(format: Format) -> Self {
        Self { format, tail: Vec::new(), lines: 0 }
    }

    fn see(&mut self, piece: &[u8]) {
        self.lines += piece.iter().filter(|b| **b == b'\n').count() as u64;
        self.tail.extend_from_slice(&piece[piece.len().saturating_sub(Self::TAIL)..]);
        let extra = self.tail.len().saturating_sub(Self::TAIL);
        self.tail.drain(..extra);
    }

    /// Lines that are devices, while the last line is not there.
    fn devices(&self) -> u64 {
        self.lines.saturating_sub(u64::from(self.format == Format::Csv))
    }

    /// The number of devices, if the last line says the one there is.
    fn check(&self) -> Option<u64> {
        let text = self.tail.strip_suffix(b"\n")?;
        let line = text.rsplit(|b| *b == b'\n').next()?;
        let said = self.format.read_end(std::str::from_utf8(line).ok()?)?;
        (said + 1 == self.devices()).then_some(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_is_whole_when_its_last_line_counts_the_others() {
        let check = |format, pieces: &[&str]| {
            let mut end = End::new(format);
            pieces.iter().for_each(|piece| end.see(piece.as_bytes()));
            end.check()
        };
        let long = "x".repeat(200);
        assert_eq!(check(Format::Ndjson, &["{}\n", &long, "\n{\"end\"", ":2}\n"]), Some(2));
        assert_eq!(check(Format::Csv, &["id\nd1\n#end,1\n"]), Some(1));
        for cut in ["", "id\n", "id\nd1\n", "id\nd1\n#end,1", "id\nd1\n#end,2\n", "id\n#end,1\n"] {
            assert_eq!(check(Format::Csv, &[cut]), None, "{cut:?}");
        }
    }

    #[test]
    fn a_file_appears_when_it_is_complete_and_is_not_replaced_unasked() {
        let place = tempfile::tempdir().unwrap();
        let wanted = place.path().join("devices.csv");
        let files = || std::fs::read_dir(place.path()).unwrap().count();
        let mut sink = Sink::open(Some(&wanted), false).unwrap();
        sink.write(b"first").unwrap();
        assert!(!wanted.exists());
        drop(sink);
        assert_eq!(files(), 0, "what broke off leaves nothing");
        let mut sink = Sink::open(Some(&wanted), false).unwrap();
        sink.write(b"first").unwrap();
        sink.finish(false).unwrap();
        drop(sink);
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&wanted).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        assert!(Sink::open(Some(&wanted), false).is_err());
        let mut sink = Sink::open(Some(&wanted), true).unwrap();
        sink.write(b"second").unwrap();
        sink.finish(true).unwrap();
        drop(sink);
        assert_eq!((std::fs::read(&wanted).unwrap(), files()), (b"second".to_vec(), 1));
    }

    #[test]
    fn two_exports_to_one_file_do_not_share_what_they_write() {
        let place = tempfile::tempdir().unwrap();
        let wanted = place.path().join("devices.csv");
        let mut sinks = [b"one", b"two"].map(|text| (Sink::open(Some(&wanted), true).unwrap(), text));
        for (sink, text) in &mut sinks {
            sink.write(*text).unwrap();
        }
        for (sink, text) in &mut sinks {
            sink.finish(true).unwrap();
            assert_eq!(std::fs::read(&wanted).unwrap(), *text);
        }
    }

    #[test]
    fn a_link_stays_a_link_and_what_is_no_file_stays_what_it_is() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::write(at("file"), "old").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        let mut sink = Sink::open(Some(&at("link")), true).unwrap();
        sink.write(b"new").unwrap();
        sink.finish(true).unwrap();
        assert_eq!(std::fs::read(at("file")).unwrap(), b"new");
        assert!(std::fs::symlink_metadata(at("link")).unwrap().is_symlink());

        let socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("socket", at("to_socket")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
        for name in ["socket", "to_socket", "dangling", "."] {
            assert!(Sink::open(Some(&at(name)), true).is_err(), "{name}");
        }
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 5);
        drop(socket);
    }
}

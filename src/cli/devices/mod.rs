//! Owns `fanfare devices`: importing and exporting many, showing one.
//! Must never know: what makes a device valid; the service says.

mod export;
mod import;
mod parts;
mod progress;
mod show;

use std::path::Path;

use clap::Subcommand;

use super::target::Target;
use super::{Failure, ids};
use crate::wire::Format;

/// What `fanfare devices` can do.
#[derive(Debug, Subcommand)]
pub enum DevicesCommand {
    /// Import devices and what they follow from NDJSON or CSV; wrong lines are told, the others kept.
    ///
    /// Exit codes: 0 all lines were kept; 1 lines were rejected, or there was nothing to import; 69 the service or its
    /// database went away, 75 it refused for now: the message says how to go on.
    #[command(after_help = import::EXAMPLE)]
    Import(import::ImportArgs),
    /// Export all devices with what they follow, tokens too, in a form that `import` reads.
    #[command(after_help = export::EXAMPLE)]
    Export(export::ExportArgs),
    /// Show one device.
    Show {
        /// The service.
        #[command(flatten)]
        target: Target,
        /// The device's id.
        #[arg(value_parser = ids::device)]
        id: String,
    },
}

/// Runs `fanfare devices`.
///
/// # Errors
/// [`Failure`] when a file cannot be read or written, the service does not answer or refuses, or lines were rejected.
pub async fn run(command: DevicesCommand) -> Result<(), Failure> {
    match command {
        DevicesCommand::Import(args) => import::run(args).await,
        DevicesCommand::Export(args) => export::run(args).await,
        DevicesCommand::Show { target, id } => show::run(&target, &id).await,
    }
}

/// The format that is asked for, or that the file's name says; NDJSON when neither does.
fn format_of(asked: Option<&String>, file: Option<&Path>) -> Result<Format, Failure> {
    if let Some(name) = asked {
        let unknown = || Failure::Usage(format!("--format {name}: must be ndjson or csv"));
        return Format::parse(name).ok_or_else(unknown);
    }
    let csv = file.and_then(Path::extension).is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
    Ok(if csv { Format::Csv } else { Format::Ndjson })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_told_by_its_option_before_the_files_name() {
        let of = |asked: Option<&str>, file: &str| format_of(asked.map(str::to_owned).as_ref(), Some(Path::new(file)));
        assert_eq!(of(None, "a.CSV"), Ok(Format::Csv));
        assert_eq!(of(None, "-"), Ok(Format::Ndjson));
        assert_eq!(of(Some("ndjson"), "a.csv"), Ok(Format::Ndjson));
        assert!(matches!(of(Some("xml"), "a.csv"), Err(Failure::Usage(_))));
    }
}

//! Owns `fanfare plan`: questions about capacity before Saturday, answered without a service.
//! Must never know: the models; it reads files and arguments, asks `capacity`, and writes the answer down.

mod against;
mod fanout;
mod limiter;
mod season;
mod table;
mod unit;

use std::path::Path;

use clap::Subcommand;

use super::Failure;
use crate::capacity::limiter::Impossible;

/// What to work out.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// What a limit refuses when requests come at random, split over limiters that know nothing of each other, with
    /// retries: by formula and by simulation; and what splitting costs.
    #[command(after_help = limiter::EXAMPLES)]
    Limiter(limiter::LimiterArgs),
    /// How long a fan-out takes, what holds it up, what lent slots make of stalls, and whether a goal is possible.
    #[command(after_help = fanout::EXAMPLES)]
    Fanout(fanout::FanoutArgs),
    /// What a list of fixtures asks for: requests over the day, who is missed, the quota and the instances it takes.
    #[command(after_help = season::EXAMPLES)]
    Season(season::SeasonArgs),
}

/// Works it out.
///
/// # Errors
/// [`Failure`] for what cannot be asked, a file that cannot be read or written.
pub fn run(command: &PlanCommand) -> Result<(), Failure> {
    match command {
        PlanCommand::Limiter(args) => limiter::run(args),
        PlanCommand::Fanout(args) => fanout::run(args),
        PlanCommand::Season(args) => season::run(args),
    }
}

impl From<Impossible> for Failure {
    fn from(fault: Impossible) -> Self {
        Self::Usage(fault.to_string())
    }
}

/// A text file, or stdin for `-`.
fn read(what: &str, path: &Path) -> Result<String, Failure> {
    let text =
        if path == Path::new("-") { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
    text.map_err(|fault| {
        Failure::Usage(format!("{what} {}: {fault}. Fix: name a text file that exists and may be read", path.display()))
    })
}

fn save(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|fault| {
        let fix = "name a file in a folder that exists and may be written";
        Failure::Runtime(format!("--plot {}: {fault}. Fix: {fix}", path.display()))
    })
}

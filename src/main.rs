//! The door: crypto providers, arguments, a runtime, an exit code. Everything else is in the library.

use std::process::ExitCode;

use clap::Parser;
use fanfare::cli::{Cli, Failure};

fn main() -> ExitCode {
    // Both libraries ask the process for a provider; choosing here makes a missing one a compile error. A second
    // choice is refused by the first, so the answers do not matter.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();

    let cli = Cli::parse();
    let done = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => {
            let done = runtime.block_on(cli.run());
            // A read of stdin that never ends must not keep the process.
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(Failure::Runtime(format!("the runtime does not start: {error}"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("fanfare: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

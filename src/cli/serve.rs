//! Owns `fanfare serve`: configuration, logs, signals, then the app until it has drained.
//! Must never know: what the app is made of.

use std::path::Path;

use super::{Failure, serving};
use crate::app::App;
use crate::{shutdown, telemetry};

/// What the help says beside the options, of which there are none of its own.
pub const NEEDS: &str = "\
Everything is a setting (`fanfare config print` shows all, with where each comes from). The first two have to be given:
  FANFARE_API_KEYS                who may call; `fanfare key` makes an entry
  GOOGLE_APPLICATION_CREDENTIALS  path of the service-account key of the Firebase project
  DATABASE_URL                    postgres://... or sqlite:PATH [default: sqlite:fanfare.db]

It listens on 127.0.0.1:8080 (api.listen) and 127.0.0.1:9090 (ops.listen: /livez /readyz /metrics).
The first SIGTERM or SIGINT drains: nothing new starts, what is in flight ends. The second ends it at once.
SIGHUP reads event types (types.file) and key file anew; a file with a fault leaves the old ones in force.";

/// Serves until SIGTERM or SIGINT, then drains.
///
/// # Errors
/// [`Failure::Config`], [`Failure::Unavailable`] when a dependency is missing at start, [`Failure::Runtime`] when a
/// part ends by itself or a drain does not finish in time.
pub async fn run(file: Option<&Path>) -> Result<(), Failure> {
    let config = serving(file)?;
    let types = config.types.file.clone();
    telemetry::init(&config.log.format, &config.log.filter)?;
    let drain = shutdown::on_signals().map_err(|error| Failure::Runtime(format!("no signal handler: {error}")))?;
    let mut hangups = shutdown::on_hangup().map_err(|error| Failure::Runtime(format!("no signal handler: {error}")))?;
    // Starting may wait for a database; a signal ends that wait too.
    let app = tokio::select! {
        app = App::build(config) => app?,
        () = drain.cancelled() => return Ok(()),
    };
    tracing::info!(target: "fanfare::cli", api = %app.api_addr(), ops = %app.ops_addr(), version = env!("CARGO_PKG_VERSION"), "serving");
    let reload = app.reload(types);
    let reloads = tokio::spawn(async move {
        loop {
            hangups.next().await;
            reload.run().await;
        }
    });
    let ended = app.run(drain).await.map_err(|error| Failure::Runtime(error.to_string()));
    reloads.abort();
    ended
}

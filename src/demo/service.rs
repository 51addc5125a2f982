//! Owns the demo's service: its settings, its start in this process, its end.
//! Must never know: what is shown of it.

use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::home::Home;
use super::provider::Provider;
use super::{DemoError, Options, tell};
use crate::api::{Scope, keys};
use crate::app::{App, BuildError, RunError, open_store};
use crate::config::{Config, Environment, load};
use crate::store::StoreError;
use crate::telemetry;

/// Longest wait for the first access token. Without one the demo goes on, and shows how a goal waits for it.
const FIRST_TOKEN: Duration = Duration::from_secs(5);

/// The service, running in this process, and the way a caller reaches it.
pub struct Service {
    /// Address of the API.
    api: String,
    secret: String,
    drain: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Service {
    /// Builds and starts it, and says of what parts.
    ///
    /// # Errors
    /// [`DemoError`] when a setting, the credentials or a dependency cannot be used.
    pub async fn start(options: &Options, home: Option<&Home>, provider: &Provider) -> Result<Self, DemoError> {
        let (secret, entry) = keys::generate("demo", Scope::ALL).map_err(|e| DemoError::Part(e.to_string()))?;
        let config = configure(options, home, provider, &entry).await?;
        // The line alone, as an operator would see it, and whatever goes wrong.
        let _ = telemetry::init(&config.log.format, "warn,fanfare::fanout=info");
        if options.database_url.is_some() {
            migrate(&config).await?;
        }
        let app = App::build(config).await?;
        let api = format!("http://{}", app.api_addr());
        let database = match (home, &options.database_url) {
            (Some(home), _) => format!("{} (removed at the end)", home.database_url()),
            (None, url) => redacted(url.as_deref().unwrap_or_default()),
        };
        let redis = options.redis_url.as_deref().map_or_else(|| "none".to_owned(), redacted);
        println!("database   {database}\nRedis      {redis}\nFCM        {}", provider.name());
        println!("API        {api}\noperations http://{}\n", app.ops_addr());
        let drain = CancellationToken::new();
        let token = app.first_token();
        let task = tokio::spawn(app.run(drain.clone()));
        // A service has long had its access token when a goal comes; this one is a few ms old.
        let _ = tokio::time::timeout(FIRST_TOKEN, token).await;
        Ok(Self { api, secret, drain, task })
    }

    /// Shows it at work, then lets it serve until told to stop.
    ///
    /// # Errors
    /// [`DemoError`] of whatever ended it early; it has drained then all the same.
    pub async fn present(
        mut self,
        options: &Options,
        provider: &Provider,
        stop: &CancellationToken,
    ) -> Result<(), DemoError> {
        let told = tokio::select! {
            told = tell(&self.api, &self.secret, options, provider) => told,
            () = stop.cancelled() => Err(DemoError::Interrupted),
            ended = &mut self.task => return early(ended),
        };
        if told.is_ok() && !options.exit {
            tokio::select! {
                () = stop.cancelled() => println!("\ndraining; a second Ctrl-C ends it at once"),
                ended = &mut self.task => return early(ended),
            }
        }
        self.drain.cancel();
        let ended = self.task.await.map_err(|e| DemoError::Part(format!("the service panicked: {e}")))?;
        told?;
        Ok(ended?)
    }
}

/// The service is not meant to end before it is told to.
fn early(ended: Result<Result<(), RunError>, JoinError>) -> Result<(), DemoError> {
    match ended {
        Ok(Err(fault)) => Err(fault.into()),
        Ok(Ok(())) => Err(DemoError::Part("the service ended by itself".to_owned())),
        Err(fault) => Err(DemoError::Part(format!("the service panicked: {fault}"))),
    }
}

/// Makes the schema in a database that may never have seen one. Closed again: SQLite is one opener's.
async fn migrate(config: &Config) -> Result<(), DemoError> {
    let store = open_store(config).await?;
    let done = store.migrate().await;
    store.close().await;
    done.map(drop).map_err(|fault| match fault {
        StoreError::Unavailable(_) => {
            let what = format!("{fault}; check --database-url, that the server runs and has this database");
            BuildError::Unavailable { what }.into()
        }
        _ => DemoError::Part(fault.to_string()),
    })
}

/// The environment's settings with the demo's own on top.
async fn configure(
    options: &Options,
    home: Option<&Home>,
    provider: &Provider,
    keys: &str,
) -> Result<Config, DemoError> {
    let file = options.config.as_deref();
    let mut env: Environment = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect();
    let own = home.map(Home::database_url);
    set(&mut env, "API__KEYS", keys);
    set(&mut env, "API__LISTEN", "127.0.0.1:0");
    set(&mut env, "OPS__LISTEN", "127.0.0.1:0");
    set(&mut env, "DATABASE__URL", options.database_url.as_deref().or(own.as_deref()).unwrap_or_default());
    set(&mut env, "REDIS__URL", options.redis_url.as_deref().unwrap_or_default());
    set(&mut env, "FCM__ENDPOINT", &provider.endpoint);
    let fcm = load(file, &env)?.config.fcm;
    let configured = !fcm.credentials.expose_secret().is_empty() || !fcm.credentials_file.as_os_str().is_empty();
    if provider.emulator.is_some() || !configured {
        set(&mut env, "FCM__CREDENTIALS", &provider.key().await?);
    }
    if let Some(emulator) = &provider.emulator {
        set(&mut env, "FCM__PROJECT_ID", emulator.project());
    }
    Ok(load(file, &env)?.serving()?)
}

/// The demo's own value is the one that counts, so the file variant of the name has to go.
fn set(env: &mut Environment, name: &str, value: &str) {
    env.remove(&format!("FANFARE__{name}_FILE"));
    env.insert(format!("FANFARE__{name}"), value.to_owned());
}

/// A URL without its password.
fn redacted(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_url_is_shown_without_its_password() {
        assert_eq!(redacted("postgres://u:secret@db/x"), "postgres://…@db/x");
        assert_eq!(redacted("sqlite:/tmp/x.db"), "sqlite:/tmp/x.db");
    }
}

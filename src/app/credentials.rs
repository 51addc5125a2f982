//! Owns the choice of credentials and project from the configuration, and says in the log what was chosen.
//! Must never know: how access tokens are kept fresh.

use std::time::Duration;

use secrecy::ExposeSecret;

use super::BuildError;
use crate::config::{Config, is_project_id};
use crate::fcm::credentials::Credentials;
use crate::fcm::http::TokenHttp;
use crate::fcm::key_file::KeyFile;
use crate::fcm::metadata::MetadataServer;
use crate::fcm::oauth::TokenSource;

/// How often a metadata server is asked for the project before that fails the start: on GKE it comes up a moment after
/// the container.
const PROJECT_TRIES: u32 = 4;
/// Between two of these.
const PROJECT_RETRY: Duration = Duration::from_secs(1);

/// Whom to ask for access tokens, and the project they are for.
pub(super) struct Access {
    pub(super) source: TokenSource,
    pub(super) project: String,
}

/// Reads the credentials; asks nobody.
pub(super) fn read(config: &Config) -> Result<Credentials, BuildError> {
    let fcm = &config.fcm;
    Credentials::load(fcm.credentials.expose_secret(), &fcm.credentials_file)
        .map_err(|error| bad(format!("{}: {error}", setting(config))))
}

/// The setting the credentials come from.
fn setting(config: &Config) -> String {
    let fcm = &config.fcm;
    if fcm.credentials.expose_secret().trim().is_empty() && !fcm.credentials_file.as_os_str().is_empty() {
        return format!("fcm.credentials_file {}", fcm.credentials_file.display());
    }
    "fcm.credentials".to_owned()
}

/// Settles project and source. Only a metadata server is asked, and only for a project no setting names.
pub(super) async fn access(config: &Config, credentials: Credentials, http: &TokenHttp) -> Result<Access, BuildError> {
    let own = credentials.project_id().map(str::to_owned);
    let set = Some(config.fcm.project_id.clone()).filter(|id| !id.is_empty());
    let (mut source, asked) = match credentials {
        Credentials::Account(account) => (TokenSource::Account(account, None), None),
        Credentials::Metadata => {
            let host = &config.fcm.metadata_host;
            let server =
                MetadataServer::at(host).ok_or_else(|| bad("fcm.metadata_host is not HOST or HOST:PORT".into()))?;
            let asked = if set.is_some() { None } else { Some(ask_project(&server, http).await?) };
            (TokenSource::from(server), asked)
        }
    };
    let named = [(set.clone(), "fcm.project_id"), (own.clone(), "key"), (asked, "metadata server")];
    let named = named.into_iter().find_map(|(id, origin)| id.map(|id| (id, origin)));
    let Some((project, origin)) = named else {
        return Err(bad("no project id: the key has none; set fcm.project_id".to_owned()));
    };
    if !is_project_id(&project) {
        return Err(bad(format!("the project id of the {origin} is none; set fcm.project_id")));
    }
    tracing::info!(target: "fanfare::app", project_id = project, origin, "project");
    if let Some(key_project_id) = own.filter(|own| *own != project) {
        let client_email = email(&source);
        tracing::warn!(target: "fanfare::app", project_id = project, key_project_id, client_email, "the key is of another project");
    }
    if let TokenSource::Account(account, file) = &mut source {
        let path = Credentials::key_file(config.fcm.credentials.expose_secret(), &config.fcm.credentials_file);
        *file = path.map(|path| KeyFile::new(path, project.clone(), account));
    }
    Ok(Access { source, project })
}

pub(super) fn email(source: &TokenSource) -> &str {
    match source {
        TokenSource::Account(account, _) => &account.client_email,
        TokenSource::Metadata(_) => "",
    }
}

async fn ask_project(server: &MetadataServer, http: &TokenHttp) -> Result<String, BuildError> {
    let mut tries = 1;
    loop {
        match server.project_id(http).await {
            Ok(id) => return Ok(id),
            Err(error) if tries == PROJECT_TRIES => {
                let fix = "set fcm.project_id, or use a service-account key outside of Google Cloud";
                return Err(BuildError::Unavailable {
                    what: format!("fcm.credentials is \"metadata\": {error}; {fix}"),
                });
            }
            Err(error) => tracing::warn!(target: "fanfare::app", %error, tries, "no project id yet"),
        }
        tries += 1;
        tokio::time::sleep(PROJECT_RETRY).await;
    }
}

fn bad(what: String) -> BuildError {
    BuildError::Config { what }
}

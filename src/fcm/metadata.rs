//! Owns Google Cloud's metadata server: its addresses, and which project it says this machine is in.
//! Must never know: when an access token is due.
//!
//! <https://cloud.google.com/compute/docs/metadata/overview>. It is asked only when the configuration says so: looking
//! for it on a machine that is not Google's takes seconds, and would hide that a key is missing.

use std::time::Duration;

use super::assertion::SCOPE;
use super::http::{Ending, Target, TokenHttp, Wire};
use super::token_answer::{Giver, TokenError, not_genuine};

/// Where it is on every machine of Google Cloud.
pub const HOST: &str = "metadata.google.internal";

/// Longest wait for the project id. Google's own libraries wait 3 s.
const PROJECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A metadata server.
#[derive(Debug, Clone)]
pub struct MetadataServer {
    token: Target,
    project: Target,
}

impl MetadataServer {
    /// The one at `HOST` or `HOST:PORT`; `None` when that is no host.
    #[must_use]
    pub fn at(host: &str) -> Option<Self> {
        let target = |path: &str| Target::parse(&format!("http://{host}/computeMetadata/v1/{path}"));
        let bare = !host.is_empty() && !host.contains(['/', '?', '#', '@']);
        // Virtual machines ignore the scope, their own is fixed; Cloud Run and GKE give what is asked for.
        let token = target("instance/service-accounts/default/token").filter(|_| bare)?;
        Some(Self { token: token.with_query(&format!("scopes={SCOPE}")), project: target("project/project-id")? })
    }

    /// Where access tokens are.
    pub(super) const fn token(&self) -> &Target {
        &self.token
    }

    /// The project this machine is in, asked for once.
    ///
    /// # Errors
    /// Another try may help: nothing is refused for good here.
    pub async fn project_id(&self, http: &TokenHttp) -> Result<String, TokenError> {
        match http.get_metadata(&self.project, PROJECT_TIMEOUT).await {
            (Wire::Broken(broken), _) => Err(Giver::Metadata.unreachable(broken)),
            (Wire::Answer(answer), false) => Err(not_genuine(answer.status)),
            (Wire::Answer(answer), true) => {
                let text = std::str::from_utf8(&answer.body).unwrap_or_default().trim();
                let whole = answer.status == 200 && answer.ending == Ending::Whole && !text.is_empty();
                let said = || format!("the metadata server names no project: status {}", answer.status);
                whole.then(|| text.to_owned()).ok_or_else(|| TokenError::Unavailable(said()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_is_a_host() {
        for host in [HOST, "169.254.169.254", "127.0.0.1:8080", "[::1]:80"] {
            assert!(MetadataServer::at(host).is_some(), "{host}");
        }
        for host in ["", "http://x", "x/y", "x?y", "x#y", "u:p@x", "x:port", " "] {
            assert!(MetadataServer::at(host).is_none(), "{host:?}");
        }
    }
}

//! Owns how a command finds the service it talks to, and what a failed call means for its exit code.
//! Must never know: what is asked of the service.

use clap::builder::{OsStringValueParser, TypedValueParser};
use secrecy::{ExposeSecret, SecretString};

use super::Failure;
use crate::api::keys::Scope;
use crate::client::{Client, ClientError};
use crate::wire::Problem;

/// The service a command talks to.
#[derive(Debug, Clone, clap::Args)]
pub struct Target {
    /// Address of the service
    #[arg(long, env = "FANFARE_URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// API key, as `fanfare key` printed it behind `key`
    #[arg(long, env = "FANFARE_KEY", hide_env_values = true, value_parser = OsStringValueParser::new().map(secret))]
    key: Option<SecretString>,
    /// Print the answer as JSON.
    #[arg(long)]
    pub json: bool,
}

impl Target {
    /// A client of the service.
    ///
    /// # Errors
    /// [`Failure::Usage`] when there is no key or the address is none.
    pub fn client(&self) -> Result<Client, Failure> {
        let missing = "no API key: pass --key or set FANFARE_KEY (`fanfare key` makes one)";
        // A file or a `$(command)` brings its line end with it.
        let key = self.key.as_ref().map_or("", |key| key.expose_secret().trim());
        if key.is_empty() {
            return Err(Failure::Usage(missing.to_owned()));
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            let odd = "the key of --key or FANFARE_KEY holds a character that no key has: copy it as `fanfare key` \
                       printed it behind `key`";
            return Err(Failure::Usage(odd.to_owned()));
        }
        let takes = "\n  --url or FANFARE_URL takes an address such as http://127.0.0.1:8080";
        Client::new(&self.url, key.to_owned().into()).map_err(|fault| self.failure(fault).and(takes))
    }

    /// What to do about a refusal, where its own words do not say.
    fn hint(&self, problem: &Problem) -> String {
        let url = &self.url;
        match problem.code.as_str() {
            "unauthenticated" => format!(
                "\n  the key of --key or FANFARE_KEY is not one that {url} knows; `fanfare key` makes one, and its entry \
                 belongs in that service's FANFARE_API_KEYS"
            ),
            "forbidden" => {
                // The detail ends with the scope; of two, either will do.
                let scope = problem.detail.rsplit(' ').next().and_then(Scope::parse).map_or("SCOPE", Scope::as_str);
                format!("\n  take a key with that scope: `fanfare key --name NAME --scopes {scope}`")
            }
            "event_conflict" => {
                "\n  for the same event give the same --occurred-at as well (without it, it is now); for other news another --id"
                    .to_owned()
            }
            "fanout_not_found" => "\n  `fanfare fanout list` lists them".to_owned(),
            "device_not_found" => "\n  ids are those you registered or imported, letter for letter".to_owned(),
            "not_found" => format!("\n  is {url} the address of a `fanfare serve`, and of this version?"),
            _ => String::new(),
        }
    }

    /// What a failed call means for the exit code.
    #[must_use]
    pub fn failure(&self, fault: ClientError) -> Failure {
        let url = &self.url;
        match fault {
            ClientError::Setup(why) => Failure::Usage(why),
            ClientError::Unreachable(why) => Failure::Unavailable(format!(
                "no answer from {url}: {why}\n  is `fanfare serve` running there? --url or FANFARE_URL names another address"
            )),
            ClientError::Strange { status } => {
                Failure::Runtime(format!("{url} answered {status}, but not as this API does; is the address right?"))
            }
            ClientError::Refused(problem) => {
                let said = format!("{}{}", told(&problem), self.hint(&problem));
                match (problem.status, problem.code.as_str()) {
                    (429, _) | (503, "overloaded" | "backlog_full" | "out_of_time") => Failure::Paused(said),
                    (503, _) => Failure::Unavailable(said),
                    _ => Failure::Runtime(said),
                }
            }
        }
    }
}

/// Bytes that are no text keep a mark in their place, for the key to be refused by name.
fn secret(raw: std::ffi::OsString) -> SecretString {
    raw.to_string_lossy().into_owned().into()
}

fn told(problem: &Problem) -> String {
    let mut text = format!("{}: {}", problem.code, problem.detail);
    if !problem.errors.is_empty() {
        text = format!("{}: {}", problem.code, problem.title);
    }
    for error in &problem.errors {
        text.push_str(&format!("\n  {}  {}", error.field, error.problem));
    }
    if let Some(seconds) = problem.retry_after_s {
        text.push_str(&format!("\n  try again in {seconds} s"));
    }
    // It goes to a terminal, which would obey what is written in control characters.
    text.chars().filter(|c| *c == '\n' || !c.is_control()).collect()
}

/// An answer as JSON, for programs.
///
/// # Errors
/// [`Failure::Runtime`] when it cannot be written as JSON, which no answer of the API can fail at.
pub fn print_json(answer: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(answer).map_err(|fault| Failure::Runtime(fault.to_string()))?;
    super::print(&format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FieldProblem;

    fn target() -> Target {
        Target { url: "http://127.0.0.1:1".into(), key: None, json: false }
    }

    fn problem(status: u16) -> ClientError {
        ClientError::Refused(Box::new(Problem {
            kind: "about:blank".into(),
            title: "Some fields are wrong".into(),
            status,
            detail: "see".into(),
            code: "invalid".into(),
            retryable: true,
            retry_after_s: Some(2),
            import: None,
            quota: None,
            errors: vec![FieldProblem { field: "/type".into(), problem: "\u{1b}[31mbad".into() }],
        }))
    }

    #[test]
    fn the_exit_code_says_whether_to_try_again() {
        let target = target();
        assert!(matches!(target.failure(problem(503)), Failure::Unavailable(_)));
        assert!(matches!(target.failure(problem(429)), Failure::Paused(_)));
        assert!(matches!(target.failure(problem(422)), Failure::Runtime(_)));
        for code in ["overloaded", "backlog_full"] {
            let ClientError::Refused(mut busy) = problem(503) else { panic!() };
            busy.code = code.to_owned();
            let failure = target.failure(ClientError::Refused(busy));
            assert!(failure.exit_code() == 75 && failure.to_string().contains("try again in 2 s"), "{failure}");
        }
        assert!(matches!(target.failure(ClientError::Unreachable("x".into())), Failure::Unavailable(_)));
        assert!(matches!(target.client(), Err(Failure::Usage(_))));
    }

    #[test]
    fn every_field_is_told_and_nothing_a_terminal_obeys() {
        let Failure::Runtime(text) = target().failure(problem(422)) else { panic!() };
        assert_eq!(text, "invalid: Some fields are wrong\n  /type  [31mbad\n  try again in 2 s");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let refused = |status, code: &str| {
            let ClientError::Refused(mut problem) = problem(status) else { panic!() };
            problem.code = code.to_owned();
            problem.detail = "the key `ci` needs the scope events or ops".to_owned();
            target().failure(ClientError::Refused(problem)).to_string()
        };
        let key = refused(401, "unauthenticated");
        assert!(key.contains("FANFARE_KEY") && key.contains("http://127.0.0.1:1"), "{key}");
        assert!(refused(403, "forbidden").ends_with("--scopes ops`"));
        assert!(refused(404, "fanout_not_found").contains("fanout list"));
        let ClientError::Unreachable(why) = ClientError::Unreachable("refused".into()) else { panic!() };
        let away = target().failure(ClientError::Unreachable(why)).to_string();
        assert!(away.contains("http://127.0.0.1:1") && away.contains("FANFARE_URL"), "{away}");
    }
}

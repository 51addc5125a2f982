//! Owns the rules between settings: what is right alone and wrong together, and what `serve` cannot start with.
//! Must never know: how a value was written, or the rooms that use it.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use secrecy::ExposeSecret;
use tracing_subscriber::EnvFilter;

use super::credentials::{is_host, is_project_id};
use super::fault::Fault;
use super::layers::Settings;
use super::{Config, keys};

/// A rule that is broken: the key to change first, what is wrong, how to mend it.
type Broken = Option<(&'static str, String, String)>;

/// One rule.
type Rule = fn(&Config) -> Broken;

/// What no command can work with.
const RULES: &[Rule] = &[
    listeners_differ,
    database_is_known,
    redis_is_known,
    endpoint_is_a_base_url,
    endpoint_is_not_in_the_clear,
    project_could_exist,
    metadata_is_a_host,
    lent_fit_slots,
    events_leave_connections,
    stall_is_before_timeout,
    quota_is_safe,
    filter_parses,
];

/// What `serve` cannot start with.
const SERVING_RULES: &[Rule] = &[someone_may_call, ca_file_is_there, credentials_file_is_there, types_file_is_there];

/// Every contradiction.
pub(super) fn contradictions(config: &Config, settings: &Settings) -> Vec<Fault> {
    apply(RULES, config, settings)
}

/// Everything that keeps `serve` from starting.
pub(super) fn obstacles(config: &Config, settings: &Settings) -> Vec<Fault> {
    apply(SERVING_RULES, config, settings)
}

fn apply(rules: &[Rule], config: &Config, settings: &Settings) -> Vec<Fault> {
    let broken = rules.iter().filter_map(|rule| rule(config));
    let fault = |(key, fault, fix): (&str, String, String)| {
        let origin = settings.get(key).map(|setting| setting.origin.to_string()).unwrap_or_default();
        Fault { key: key.to_owned(), origin, fault, fix }
    };
    broken.map(fault).collect()
}

fn broken(when: bool, key: &'static str, fault: String, fix: &str) -> Broken {
    when.then(|| (key, fault, fix.to_owned()))
}

fn listeners_differ(config: &Config) -> Broken {
    let (api, ops) = (config.api.listen, config.ops.listen);
    let any = |a: SocketAddr| a.ip().is_unspecified();
    let same = api.port() == ops.port() && api.port() != 0 && (api.ip() == ops.ip() || any(api) || any(ops));
    broken(same, "ops.listen", format!("{ops} is taken by api.listen ({api})"), "give them different ports")
}

fn database_is_known(config: &Config) -> Broken {
    let fault = "is neither a PostgreSQL URL nor an SQLite file".to_owned();
    let fix = "write postgres://USER:PASSWORD@HOST/DATABASE or sqlite:PATH (a file, without parameters)";
    broken(config.database.engine().is_none(), "database.url", fault, fix)
}

fn redis_is_known(config: &Config) -> Broken {
    let url = config.redis.url.expose_secret();
    let known = url.is_empty() || ["redis://", "rediss://", "unix://"].iter().any(|scheme| url.starts_with(scheme));
    let fault = "is no URL of a Redis server".to_owned();
    broken(!known, "redis.url", fault, "start it with redis://, rediss:// or unix://, or leave it empty for none")
}

fn endpoint_is_a_base_url(config: &Config) -> Broken {
    let endpoint = &config.fcm.endpoint;
    let bare = authority(endpoint).is_some_and(|authority| {
        let has_port = authority.as_str() != authority.host();
        !endpoint.contains(['?', '#', '@']) && (!has_port || authority.port_u16().is_some())
    });
    // What stands before an `@` may be a password.
    let shown = if endpoint.contains('@') { "a URL with a user".to_owned() } else { keys::shown(endpoint) };
    let fault = format!("{shown} is not scheme://HOST or scheme://HOST:PORT");
    broken(!bare, "fcm.endpoint", fault, "write only that, such as https://fcm.googleapis.com, without a path")
}

/// What stands between the scheme and the end; nothing else may.
fn authority(endpoint: &str) -> Option<http::uri::Authority> {
    endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"))?.parse().ok()
}

fn endpoint_is_not_in_the_clear(config: &Config) -> Broken {
    let authority = authority(&config.fcm.endpoint).filter(|_| config.fcm.endpoint.starts_with("http://"))?;
    let host = authority.host().trim_matches(['[', ']']);
    let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let fault = format!("http:// would send bearer tokens to {} in the clear", keys::shown(host));
    broken(!here, "fcm.endpoint", fault, "use https:// (and fcm.ca_file for an emulator), or an emulator on 127.0.0.1")
}

fn project_could_exist(config: &Config) -> Broken {
    let id = &config.fcm.project_id;
    let fault = format!("{} is no project id: 6 to 30 small letters, digits and hyphens", keys::shown(id));
    let fix = "copy it from the Firebase console (Project settings, Project ID), or leave it empty";
    broken(!id.is_empty() && !is_project_id(id), "fcm.project_id", fault, fix)
}

fn metadata_is_a_host(config: &Config) -> Broken {
    let host = &config.fcm.metadata_host;
    let fault = format!("{} is not HOST or HOST:PORT", keys::shown(host));
    broken(
        !is_host(host),
        "fcm.metadata_host",
        fault,
        "leave it as it is: metadata.google.internal, on all of Google Cloud",
    )
}

fn lent_fit_slots(config: &Config) -> Broken {
    let (lent, slots) = (config.fcm.lent(), config.fcm.slots);
    let fault = format!("{lent} slots to lend are more than the {slots} of fcm.slots");
    broken(lent > slots, "fcm.lent_slots", fault, "lend at most all of them; -1 lends half")
}

fn events_leave_connections(config: &Config) -> Broken {
    let (events, all) = (config.database.ingest_connections, config.database.max_connections);
    let fault = format!("{events} connections for events leave none of database.max_connections ({all}) for all else");
    broken(events >= all, "database.ingest_connections", fault, "lower it; 0 takes three eighths of them")
}

fn stall_is_before_timeout(config: &Config) -> Broken {
    let (stall, timeout) = (config.fcm.stall_after_ms, config.fcm.attempt_timeout_ms);
    let fault =
        format!("{stall} ms is not before fcm.attempt_timeout_ms ({timeout} ms), so no slot could ever be lent");
    broken(stall >= timeout, "fcm.stall_after_ms", fault, "lower it, or raise fcm.attempt_timeout_ms")
}

fn quota_is_safe(config: &Config) -> Broken {
    let ceiling = &config.ceiling;
    // The most one minute can see: a full burst, then the rate.
    let most = ceiling.burst() + 60.0 * ceiling.rate_per_s;
    let fault = format!(
        "{} requests/s can make {most:.0} in one minute, above ceiling.quota_per_minute ({})",
        ceiling.rate_per_s, ceiling.quota_per_minute
    );
    let fix = "lower it, or raise ceiling.quota_per_minute to what Google granted the project";
    broken(most > ceiling.quota_per_minute as f64, "ceiling.rate_per_s", fault, fix)
}

fn filter_parses(config: &Config) -> Broken {
    let error = EnvFilter::builder().parse(&config.log.filter).err()?;
    let fix = "write it like `info` or `info,fanfare::fcm=debug`";
    broken(true, "log.filter", format!("{} is no filter: {error}", keys::shown(&config.log.filter)), fix)
}

fn someone_may_call(config: &Config) -> Broken {
    let fix =
        "run `fanfare key --name backend --scopes events,devices,ops` and set FANFARE_API_KEYS to the entry it prints";
    let nobody = config.api.keys.expose_secret().trim().is_empty();
    broken(nobody, "api.keys", "there is no key, so nobody could call the API".to_owned(), fix)
}

fn ca_file_is_there(config: &Config) -> Broken {
    is_there("fcm.ca_file", &config.fcm.ca_file)
}

fn credentials_file_is_there(config: &Config) -> Broken {
    is_there("fcm.credentials_file", &config.fcm.credentials_file)
}

fn types_file_is_there(config: &Config) -> Broken {
    is_there("types.file", &config.types.file)
}

fn is_there(key: &'static str, path: &Path) -> Broken {
    // What comes through a pipe comes once: it is left for whoever reads it.
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return None;
    }
    let error = std::fs::File::open(path).err().filter(|_| !path.as_os_str().is_empty())?;
    let fault = format!("{} cannot be read: {error}", keys::shown(&path.to_string_lossy()));
    broken(true, key, fault, "name a file that exists and may be read, or leave it empty")
}

#[cfg(test)]
mod tests {
    use crate::config::{Environment, load};

    fn env(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| (format!("FANFARE__{name}"), (*value).to_owned())).collect()
    }

    /// Demands that these settings break exactly one rule, named by `key`, and say `word`.
    fn refused(pairs: &[(&str, &str)], key: &str, word: &str) {
        let faults = load(None, &env(pairs)).expect_err(&format!("{pairs:?} was taken")).faults;
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].key, key, "{faults:?}");
        assert!(faults[0].to_string().contains(word), "{}", faults[0]);
        assert!(faults[0].origin == "default" || faults[0].origin.contains("FANFARE__"), "{}", faults[0]);
    }

    fn taken(pairs: &[(&str, &str)]) {
        load(None, &env(pairs)).unwrap_or_else(|error| panic!("{pairs:?}: {error}"));
    }

    #[test]
    fn a_rate_whose_worst_minute_is_above_the_quota_is_refused() {
        // 60 x rate + 10 ms of rate: 9998.33 requests/s is the most that 600,000 a minute carry.
        taken(&[("CEILING__RATE_PER_S", "9998.3")]);
        refused(&[("CEILING__RATE_PER_S", "9998.4")], "ceiling.rate_per_s", "ceiling.quota_per_minute (600000)");
        // The quota says 600 a minute; the burst of one makes it 601.
        refused(&[("CEILING__RATE_PER_S", "10"), ("CEILING__QUOTA_PER_MINUTE", "600")], "ceiling.rate_per_s", "601");
        taken(&[("CEILING__RATE_PER_S", "10"), ("CEILING__QUOTA_PER_MINUTE", "601")]);
    }

    #[test]
    fn a_stall_is_seen_before_the_time_out() {
        refused(&[("FCM__STALL_AFTER_MS", "30000")], "fcm.stall_after_ms", "fcm.attempt_timeout_ms (30000 ms)");
        taken(&[("FCM__STALL_AFTER_MS", "29999")]);
    }

    #[test]
    fn no_more_slots_are_lent_than_there_are() {
        refused(&[("FCM__LENT_SLOTS", "33")], "fcm.lent_slots", "the 32 of fcm.slots");
        taken(&[("FCM__LENT_SLOTS", "32")]);
        taken(&[("FCM__LENT_SLOTS", "0")]);
    }

    #[test]
    fn events_may_not_have_every_connection() {
        refused(&[("DATABASE__INGEST_CONNECTIONS", "16")], "database.ingest_connections", "(16) for all else");
        taken(&[("DATABASE__INGEST_CONNECTIONS", "15")]);
        taken(&[("DATABASE__MAX_CONNECTIONS", "1")]);
    }

    #[test]
    fn a_retry_delay_longer_than_a_corner_is_useful_is_refused() {
        taken(&[("FCM__RETRY_DELAY_MS", "10000")]);
        refused(&[("FCM__RETRY_DELAY_MS", "20001")], "fcm.retry_delay_ms", "0 to 20000 ms");
    }

    #[test]
    fn the_number_of_streams_has_bounds() {
        refused(&[("FCM__STREAMS_PER_CONNECTION", "0")], "fcm.streams_per_connection", "1 to 1000");
        refused(&[("FCM__STREAMS_PER_CONNECTION", "1001")], "fcm.streams_per_connection", "1 to 1000");
    }

    #[test]
    fn two_listeners_need_two_addresses() {
        refused(&[("OPS__LISTEN", "127.0.0.1:8080")], "ops.listen", "taken by api.listen");
        refused(&[("OPS__LISTEN", "0.0.0.0:8080")], "ops.listen", "taken by api.listen");
        taken(&[("OPS__LISTEN", "127.0.0.2:8080")]);
        taken(&[("OPS__LISTEN", "127.0.0.1:0"), ("API__LISTEN", "127.0.0.1:0")]);
    }

    #[test]
    fn the_endpoint_is_a_base_url() {
        for endpoint in
            ["", "fcm.googleapis.com", "ftp://h", "https://", "https://h/", "https://h/v1", "https://h:port"]
        {
            refused(&[("FCM__ENDPOINT", endpoint)], "fcm.endpoint", "scheme://HOST");
        }
        taken(&[("FCM__ENDPOINT", "https://emulator.test:8443")]);
        let error = load(None, &env(&[("FCM__ENDPOINT", "https://u:hunter2@h")])).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_bearer_token_does_not_leave_the_machine_in_the_clear() {
        for endpoint in ["http://emulator:8080", "http://10.0.0.5:8080", "http://localhost.evil.test"] {
            refused(&[("FCM__ENDPOINT", endpoint)], "fcm.endpoint", "in the clear");
        }
        for endpoint in ["http://127.0.0.1:8080", "http://localhost:1", "http://[::1]:8080"] {
            taken(&[("FCM__ENDPOINT", endpoint)]);
        }
    }

    #[test]
    fn the_database_is_one_of_two() {
        for url in ["", "mysql://h/d", "fanfare.db", "sqlite:", "sqlite://", "sqlite::memory:", "sqlite:a.db?mode=ro"] {
            refused(&[("DATABASE__URL", url)], "database.url", "sqlite:PATH");
        }
        for url in ["postgres://h/d", "postgresql://h/d", "sqlite:a.db", "sqlite:///tmp/a.db"] {
            taken(&[("DATABASE__URL", url)]);
        }
        let error = load(None, &env(&[("DATABASE__URL", "mysql://u:hunter2@h/d")])).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn redis_is_a_known_scheme_or_none() {
        refused(&[("REDIS__URL", "localhost:6379")], "redis.url", "rediss://");
        taken(&[("REDIS__URL", "unix:///run/redis.sock")]);
    }

    #[test]
    fn a_log_filter_must_parse() {
        refused(&[("LOG__FILTER", "fanfare=loud")], "log.filter", "\"fanfare=loud\" is no filter");
    }

    #[test]
    fn serve_needs_a_key_and_the_files_it_is_told_to_read() {
        let faults = load(None, &env(&[])).unwrap().serving().unwrap_err().faults;
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].key, "api.keys");
        assert!(faults[0].fix.contains("fanfare key"));

        for (variable, key) in [
            ("FCM__CA_FILE", "fcm.ca_file"),
            ("FCM__CREDENTIALS_FILE", "fcm.credentials_file"),
            ("TYPES__FILE", "types.file"),
        ] {
            let pairs = [("API__KEYS", "ci:events:00"), (variable, "/nonexistent")];
            let faults = load(None, &env(&pairs)).unwrap().serving().unwrap_err().faults;
            assert_eq!((faults.len(), faults[0].key.as_str()), (1, key), "{faults:?}");
        }
        load(None, &env(&[("API__KEYS", "ci:events:00")])).unwrap().serving().unwrap();
    }

    #[test]
    fn a_project_and_a_metadata_server_must_be_able_to_exist() {
        refused(&[("FCM__PROJECT_ID", "My Project")], "fcm.project_id", "\"My Project\" is no project id");
        taken(&[("FCM__PROJECT_ID", "my-project")]);
        refused(&[("FCM__METADATA_HOST", "http://h")], "fcm.metadata_host", "\"http://h\" is not HOST");
        taken(&[("FCM__METADATA_HOST", "127.0.0.1:8080")]);
    }

    #[test]
    fn every_fault_is_found_at_once() {
        let pairs = [("OPS__LISTEN", "127.0.0.1:8080"), ("FCM__STALL_AFTER_MS", "30000"), ("REDIS__URL", "x")];
        let error = load(None, &env(&pairs)).unwrap_err();
        assert_eq!(error.faults.len(), 3);
        assert_eq!(error.to_string().lines().count(), 4, "{error}");
    }
}

//! Owns the rules between settings: what is right alone and wrong together, and what `serve` cannot start with.
//! Must never know: how a value was written, or the rooms that use it.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use secrecy::ExposeSecret;
use tracing_subscriber::EnvFilter;

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
    lent_fit_slots,
    stall_is_before_timeout,
    timeout_is_before_grace,
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
    let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://")).unwrap_or_default();
    let bare = !host.is_empty() && !host.contains(['/', '?', '#', '@']) && host.parse::<http::uri::Authority>().is_ok();
    // What stands before an `@` may be a password.
    let shown = if endpoint.contains('@') { "a URL with a user".to_owned() } else { keys::shown(endpoint) };
    let fault = format!("{shown} is not scheme://HOST or scheme://HOST:PORT");
    broken(!bare, "fcm.endpoint", fault, "write only that, such as https://fcm.googleapis.com, without a path")
}

fn endpoint_is_not_in_the_clear(config: &Config) -> Broken {
    let authority = config.fcm.endpoint.strip_prefix("http://")?.parse::<http::uri::Authority>().ok()?;
    let host = authority.host().trim_matches(['[', ']']);
    let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let fault = format!("http:// would send bearer tokens to {} in the clear", keys::shown(host));
    broken(!here, "fcm.endpoint", fault, "use https:// (and fcm.ca_file for an emulator), or an emulator on 127.0.0.1")
}

fn lent_fit_slots(config: &Config) -> Broken {
    let (lent, slots) = (config.fcm.lent(), config.fcm.slots);
    let fault = format!("{lent} slots to lend are more than the {slots} of fcm.slots");
    broken(lent > slots, "fcm.lent_slots", fault, "lend at most all of them; -1 lends half")
}

fn stall_is_before_timeout(config: &Config) -> Broken {
    let (stall, timeout) = (config.fcm.stall_after_ms, config.fcm.attempt_timeout_ms);
    let fault =
        format!("{stall} ms is not before fcm.attempt_timeout_ms ({timeout} ms), so no slot could ever be lent");
    broken(stall >= timeout, "fcm.stall_after_ms", fault, "lower it, or raise fcm.attempt_timeout_ms")
}

fn timeout_is_before_grace(config: &Config) -> Broken {
    let (timeout, grace) = (config.fcm.attempt_timeout_ms, config.drain.grace_ms);
    let fault =
        format!("{timeout} ms is not shorter than drain.grace_ms ({grace} ms): a drain would throw answers away");
    broken(timeout >= grace, "fcm.attempt_timeout_ms", fault, "lower it, or raise drain.grace_ms")
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
    let fix = "run `fanfare key --name ci --scopes events,ops` and set FANFARE_API_KEYS to the entry it prints";
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
    let error = std::fs::File::open(path).err().filter(|_| !path.as_os_str().is_empty())?;
    let path = path.to_string_lossy();
    if path.trim_start().starts_with('{') {
        let fault = "holds JSON where the path of a file belongs".to_owned();
        return broken(true, key, fault, "name a file; fcm.credentials takes a service-account key itself");
    }
    let fault = format!("{} cannot be read: {error}", keys::shown(&path));
    broken(true, key, fault, "name a file that exists and may be read, or leave it empty")
}

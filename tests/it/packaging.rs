//! `Dockerfile` and `compose.yaml`, as far as they can be checked without an engine: read strictly, every name in them
//! looked up, every command of ours run against the built binary.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fanfare::config::{DEFAULTS, Environment, load};
use secrecy::ExposeSecret;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use super::harness::service::{Database, World};

/// Longest wait for a process.
const PATIENCE: Duration = Duration::from_secs(60);

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

// --- the Dockerfile ---

/// One stage: `FROM image AS name` and what follows.
#[derive(Debug)]
struct Stage {
    image: String,
    name: String,
    /// Instruction and arguments, in order.
    lines: Vec<(String, String)>,
}

impl Stage {
    fn all(&self, instruction: &str) -> Vec<&str> {
        self.lines.iter().filter(|(name, _)| name == instruction).map(|(_, args)| args.as_str()).collect()
    }

    /// The arguments of an instruction that stands here exactly once.
    fn one(&self, instruction: &str) -> &str {
        let found = self.all(instruction);
        assert_eq!(found.len(), 1, "{instruction} in stage {}", self.name);
        found[0]
    }

    /// `NAME=value` pairs of ENV or LABEL.
    fn pairs(&self, instruction: &str) -> BTreeMap<String, String> {
        let words = self.all(instruction).into_iter().flat_map(words);
        let pair = |word: String| word.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
        words.map(|word| pair(word.clone()).unwrap_or_else(|| panic!("{instruction} {word}"))).collect()
    }
}

/// Splits at blanks outside of double quotes, and takes the quotes off.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut quoted) = (vec![String::new()], false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    assert!(!quoted, "an open quote: {text}");
    words.retain(|word| !word.is_empty());
    words
}

/// Reads the instructions: comments off, continued lines joined; anything unknown fails the test.
fn stages(text: &str) -> Vec<Stage> {
    let mut lines = Vec::new();
    let mut continued = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        match line.strip_suffix('\\') {
            Some(part) => continued.push_str(part),
            None if !(continued.is_empty() && line.is_empty()) => lines.push(std::mem::take(&mut continued) + line),
            None => {}
        }
    }
    assert!(continued.is_empty(), "the last line is continued");
    let mut stages: Vec<Stage> = Vec::new();
    for line in lines {
        let (instruction, args) = line.split_once(' ').unwrap_or_else(|| panic!("no arguments: {line}"));
        let args = args.trim().to_owned();
        match instruction {
            "FROM" => {
                let [image, as_, name] =
                    words(&args).try_into().unwrap_or_else(|_| panic!("FROM without a name: {args}"));
                assert_eq!(as_, "AS", "{args}");
                stages.push(Stage { image, name, lines: Vec::new() });
            }
            "RUN" | "COPY" | "WORKDIR" | "ARG" | "LABEL" | "ENV" | "EXPOSE" | "USER" | "STOPSIGNAL" | "HEALTHCHECK"
            | "ENTRYPOINT" | "CMD" => {
                let stage = stages.last_mut().unwrap_or_else(|| panic!("before FROM: {line}"));
                stage.lines.push((instruction.to_owned(), args));
            }
            other => panic!("no instruction {other}: {line}"),
        }
    }
    stages
}

fn dockerfile() -> (Stage, Stage) {
    let stages = stages(&read("Dockerfile"));
    let [build, run] = stages.try_into().expect("two stages");
    (build, run)
}

/// Sources of what is copied from the folder of the project.
fn copied(stage: &Stage) -> Vec<String> {
    let own = stage.all("COPY").into_iter().filter(|args| !args.contains("--from="));
    own.flat_map(|args| {
        let mut names = words(args);
        names.pop();
        names
    })
    .collect()
}

/// A command in the form that needs no shell.
fn exec(args: &str) -> Vec<String> {
    serde_json::from_str(args).unwrap_or_else(|_| panic!("not in exec form: {args}"))
}

#[test]
fn the_images_are_pinned_and_every_stage_and_source_exists() {
    let (build, run) = dockerfile();
    for stage in [&build, &run] {
        let (_, tag) = stage.image.split_once(':').unwrap_or_else(|| panic!("{}: no version", stage.image));
        assert!(tag != "latest" && !tag.is_empty());
    }
    let manifest: toml::Table = toml::from_str(&read("Cargo.toml")).unwrap();
    let wanted = manifest["package"]["rust-version"].as_str().unwrap();
    assert!(build.image.starts_with(&format!("rust:{wanted}.")), "{} is not Rust {wanted}", build.image);
    let debian = build.image.rsplit('-').next().unwrap();
    assert_eq!(run.image, format!("debian:{debian}-slim"), "the C library must not be older than the one built with");

    for source in copied(&build) {
        assert!(root().join(&source).exists(), "COPY {source}: not there");
    }
    assert_eq!(copied(&run), Vec::<String>::new(), "the image takes everything from the build");
    for args in run.all("COPY") {
        assert!(args.starts_with("--from=build "), "{args}");
        let [source, _]: [String; 2] =
            words(args).into_iter().filter(|word| !word.starts_with("--")).collect::<Vec<_>>().try_into().unwrap();
        let made = build.all("RUN").iter().any(|run| run.contains(&source));
        assert!(made || source == "/etc/ssl/certs/ca-certificates.crt", "nobody makes {source}");
    }
    assert!(build.all("RUN").iter().any(|run| run.contains("ca-certificates")));
    let version = manifest["package"]["version"].as_str().unwrap();
    assert!(run.all("ARG").contains(&format!("VERSION={version}").as_str()), "{:?}", run.all("ARG"));
}

#[test]
fn nothing_that_is_copied_is_ignored_and_secrets_are() {
    let ignore = read(".dockerignore");
    let rules: Vec<&str> = ignore.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(rules[0], "*", "everything is ignored that is not named");
    let named: BTreeSet<&str> = rules[1..].iter().map(|rule| rule.strip_prefix('!').expect(rule)).collect();
    let copied: Vec<String> = copied(&dockerfile().0).iter().map(|s| s.trim_start_matches("./").to_owned()).collect();
    assert_eq!(named, copied.iter().map(String::as_str).collect());
    assert!(read(".gitignore").lines().any(|line| line == "/secrets/"), "a key must not get into the repository");
}

#[tokio::test]
async fn what_is_copied_is_all_that_cargo_and_the_sources_ask_for() {
    let folder = tempfile::tempdir().unwrap();
    let sources = copied(&dockerfile().0);
    for source in &sources {
        copy(&root().join(source), &folder.path().join(source.trim_start_matches("./")));
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"]).current_dir(folder.path());
    let output = cargo.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    for target in metadata["packages"][0]["targets"].as_array().unwrap() {
        // Tests are not built in the image.
        assert!(target["kind"][0] == "test" || Path::new(target["src_path"].as_str().unwrap()).exists(), "{target}");
    }
    let mut folders = vec![folder.path().join("src")];
    let mut included = 0;
    while let Some(inside) = folders.pop() {
        for path in std::fs::read_dir(inside).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            // Nor are the tests inside of files.
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            for (macro_, base) in [("include_str!(\"", path.parent().unwrap()), ("migrate!(\"", folder.path())] {
                for part in text.split(macro_).skip(1) {
                    let file = base.join(part.split('"').next().unwrap());
                    assert!(file.exists(), "{}: {}", path.display(), file.display());
                    included += 1;
                }
            }
        }
    }
    assert!(included >= 4, "{included} files are compiled in");
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        std::fs::copy(from, to).unwrap();
    }
}

#[test]
fn the_image_runs_as_nobody_and_ends_by_the_signal_that_drains() {
    let (_, run) = dockerfile();
    let (user, group) = run.one("USER").split_once(':').unwrap();
    assert!(user.parse::<u32>().unwrap() > 0 && group.parse::<u32>().unwrap() > 0, "numbers, and not root");
    assert_eq!(run.one("STOPSIGNAL"), "SIGTERM");
    assert_eq!(
        (exec(run.one("ENTRYPOINT")), exec(run.one("CMD"))),
        (vec!["fanfare".to_owned()], vec!["serve".to_owned()])
    );
    let (_, check) = run.one("HEALTHCHECK").split_once("CMD ").unwrap();
    assert_eq!(exec(check), ["fanfare", "healthcheck"]);
    let owned = run.all("COPY").into_iter().any(|args| args.contains(&format!("--chown={user}:{group}")));
    assert!(owned && run.one("WORKDIR") == "/data", "the one folder it may write to is its own");
}

// --- compose.yaml ---

/// The file, with variables of the caller replaced by `variables` or by their defaults.
fn compose(variables: &[(&str, &str)]) -> Value {
    let mut text = String::new();
    let file = read("compose.yaml");
    let mut rest = file.as_str();
    while let Some((before, after)) = rest.split_once("${") {
        let (expression, after) = after.split_once('}').expect("a closed ${");
        let (name, default) = expression.split_once(":-").expect("a default");
        let value = variables.iter().find(|(of, _)| *of == name).map_or(default, |(_, value)| value);
        text.extend([before, value]);
        rest = after;
    }
    text.push_str(rest);
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// Names and values of an object.
fn fields(value: &Value) -> BTreeMap<String, Value> {
    let object = value.as_object().cloned().unwrap_or_default();
    object.into_iter().collect()
}

fn texts(value: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned();
    value.as_array().into_iter().flatten().map(text).collect()
}

fn environment(service: &Value) -> Environment {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned();
    fields(&service["environment"]).into_iter().map(|(name, value)| (name, text(&value))).collect()
}

/// The services that are made from our image.
fn ours(compose: &Value) -> BTreeMap<String, Value> {
    fields(&compose["services"]).into_iter().filter(|(_, service)| service["image"] == "fanfare").collect()
}

#[test]
fn compose_says_nothing_it_does_not_mean() {
    let compose = compose(&[]);
    let known = [
        "image",
        "build",
        "command",
        "restart",
        "environment",
        "secrets",
        "volumes",
        "ports",
        "healthcheck",
        "depends_on",
        "profiles",
        "read_only",
        "cap_drop",
        "security_opt",
        "stop_grace_period",
    ];
    let (services, mut used) = (fields(&compose["services"]), BTreeSet::new());
    assert_eq!(fields(&compose).into_keys().collect::<Vec<_>>(), ["name", "secrets", "services", "volumes"]);
    for (name, service) in &services {
        for key in fields(service).keys() {
            assert!(known.contains(&key.as_str()), "{name}: {key}");
        }
        for (needed, how) in fields(&service["depends_on"]) {
            assert!(services.contains_key(&needed), "{name} needs {needed}");
            let healthy = how["condition"] == "service_healthy";
            assert!(
                !healthy || services[&needed]["healthcheck"]["test"].is_array(),
                "{needed} says nothing of its health"
            );
        }
        for secret in texts(&service["secrets"]) {
            assert!(compose["secrets"][&secret]["file"].is_string(), "{name}: no secret {secret}");
            let path = format!("/run/secrets/{secret}");
            assert!(environment(service).values().any(|value| *value == path), "{name} does not read {path}");
            used.insert(secret);
        }
        for value in environment(service).values() {
            let secret = value.strip_prefix("/run/secrets/");
            assert!(
                secret.is_none_or(|secret| texts(&service["secrets"]).contains(&secret.to_owned())),
                "{name}: {value}"
            );
        }
        for volume in texts(&service["volumes"]) {
            let volume = volume.split(':').next().unwrap().to_owned();
            assert!(fields(&compose["volumes"]).contains_key(&volume), "{name}: no volume {volume}");
        }
        let image = service["image"].as_str().unwrap();
        let pinned = image.split_once(':').is_some_and(|(_, tag)| tag != "latest");
        assert!(pinned || (image == "fanfare" && service["build"] == "."), "{name}: {image}");
        assert!(service["restart"].is_string(), "{name}: nobody says whether it is started again");
    }
    assert_eq!(used, fields(&compose["secrets"]).into_keys().collect());
    assert_eq!(services["emulator"]["profiles"][0], "emulator", "only when asked for");
}

#[test]
fn every_variable_is_a_setting_that_counts() {
    let (_, run) = dockerfile();
    let compose = compose(&[]);
    let mut seen = 0;
    let services = ours(&compose).into_iter().map(|(name, service)| (name, environment(&service)));
    for (whose, variables) in services.chain([("Dockerfile".to_owned(), run.pairs("ENV"))]) {
        for (name, value) in variables {
            // A secret's file is not here; any other file of one line will do.
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), "sqlite:x.db").unwrap();
            let value = if name.ends_with("_FILE") { file.path().display().to_string() } else { value };
            let loaded = load(None, &[(name.clone(), value)].into()).unwrap_or_else(|error| panic!("{whose}: {error}"));
            // What is in force names the variable, or its file, as where a value comes from.
            let counts = loaded.print().lines().any(|line| line.contains(&name));
            assert!(counts, "{whose}: {name} sets nothing");
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen}");
}

#[test]
fn ports_and_times_agree_with_the_settings() {
    let (_, run) = dockerfile();
    let image = load(None, &run.pairs("ENV")).unwrap().config;
    assert!(image.api.listen.ip().is_unspecified() && image.ops.listen.ip().is_unspecified(), "reached from outside");
    let exposed: BTreeSet<String> = words(run.one("EXPOSE")).into_iter().collect();
    let listens = [image.api.listen, image.ops.listen].map(|addr| addr.port().to_string());
    assert_eq!(exposed, listens.clone().into());
    let defaults: toml::Table = toml::from_str(DEFAULTS).unwrap();
    for (section, port) in [("api", &listens[0]), ("ops", &listens[1])] {
        assert!(defaults[section]["listen"].as_str().unwrap().ends_with(&format!(":{port}")), "as without a container");
    }
    let compose = compose(&[]);
    for port in texts(&compose["services"]["fanfare"]["ports"]) {
        assert!(port.starts_with("127.0.0.1:") && exposed.contains(port.rsplit(':').next().unwrap()), "{port}");
    }
    let grace = compose["services"]["fanfare"]["stop_grace_period"].as_str().unwrap();
    let grace: u64 = grace.strip_suffix('s').unwrap().parse().unwrap();
    assert!(
        grace * 1000 > image.drain.grace_ms + 5000,
        "{grace} s is too short for a drain of {} ms",
        image.drain.grace_ms
    );
}

fn fanfare(args: &[String], env: &Environment) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanfare"));
    command.args(args).env_clear().envs(env).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    command
}

#[tokio::test]
async fn every_command_is_one_of_ours() {
    let (_, run) = dockerfile();
    let (_, check) = run.one("HEALTHCHECK").split_once("CMD ").unwrap();
    let mut commands = vec![exec(run.one("CMD")), exec(check)[1..].to_vec()];
    for (name, service) in ours(&compose(&[])) {
        let command = texts(&service["command"]);
        assert!(!command.is_empty(), "{name}");
        commands.push(command);
        if let [cmd, program, args @ ..] = texts(&service["healthcheck"]["test"]).as_slice() {
            assert_eq!(cmd, "CMD", "{name}: no shell");
            if program == "fanfare" {
                commands.push(args.to_vec());
            }
        }
    }
    assert!(commands.len() >= 6, "{commands:?}");
    for command in commands {
        // What stands before `--help` has to be known for the help to come.
        let args = [command.as_slice(), &["--help".to_owned()]].concat();
        let output = fanfare(&args, &Environment::new()).output().await.unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let wrong = ["serve".to_owned(), "--no-such".to_owned(), "--help".to_owned()];
    assert!(!fanfare(&wrong, &Environment::new()).output().await.unwrap().status.success());
}

/// A port nobody has at this moment.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_of_compose_migrates_serves_is_healthy_and_ends_by_sigterm() {
    let world = World::new(Database::Postgres, true).await;
    let folder = tempfile::tempdir().unwrap();
    let compose = compose(&[("FCM_ENDPOINT", world.emulator.endpoint())]);
    for (secret, setting) in
        [("database_url", "DATABASE__URL"), ("api_keys", "API__KEYS"), ("fcm_key", "FCM__CREDENTIALS")]
    {
        let value = &world.settings[&format!("FANFARE__{setting}")];
        std::fs::write(folder.path().join(secret), format!("{value}\n")).unwrap();
    }
    let redis = world.redis.as_ref().unwrap().url();
    let here = |service: &Value| {
        let mut env = dockerfile().1.pairs("ENV");
        env.extend(environment(service));
        for value in env.values_mut() {
            *value = value.replace("/run/secrets", folder.path().to_str().unwrap());
            *value = value.replace("redis://redis:6379", redis.expose_secret());
        }
        // The containers have these ports to themselves, this machine has not.
        env.insert("PORT".to_owned(), free_port().to_string());
        env.insert("FANFARE__OPS__LISTEN".to_owned(), format!("0.0.0.0:{}", free_port()));
        env
    };
    let services = &compose["services"];
    let migrate = &services["migrate"];
    let migrated = fanfare(&texts(&migrate["command"]), &here(migrate)).output().await.unwrap();
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));

    let service = &services["fanfare"];
    let env = here(service);
    let mut running = fanfare(&texts(&service["command"]), &env).stdout(Stdio::null()).spawn().unwrap();
    let check = &texts(&service["healthcheck"]["test"])[2..];
    let healthy = async {
        loop {
            let asked = fanfare(check, &env).output().await.unwrap();
            if asked.status.success() {
                return;
            }
            assert!(running.try_wait().unwrap().is_none(), "it has ended");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, healthy).await.expect("healthy");
    let ready = reqwest::get(format!("http://127.0.0.1:{}/openapi.json", env["PORT"])).await;
    assert!(ready.is_ok(), "the API listens where PORT says");
    let pid = running.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
    assert_eq!(timeout(PATIENCE, running.wait()).await.expect("it ends").unwrap().code(), Some(0));
    assert_eq!(fanfare(check, &env).output().await.unwrap().status.code(), Some(1), "and is healthy no more");
}

#[tokio::test]
async fn the_emulator_of_compose_writes_what_the_service_reads() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_str().unwrap();
    let emulator = &compose(&[])["services"]["emulator"];
    let args = texts(&emulator["command"]).into_iter();
    let args: Vec<String> = args.map(|arg| arg.replace("/data", here).replace("0.0.0.0:8790", "127.0.0.1:0")).collect();
    let mut running = fanfare(&args, &Environment::new()).stdout(Stdio::null()).spawn().unwrap();
    let check = texts(&emulator["healthcheck"]["test"]).into_iter().map(|arg| arg.replace("/data", here));
    let check: Vec<String> = check.collect();
    let healthy = async {
        while !Command::new(&check[1]).args(&check[2..]).status().await.unwrap().success() {
            assert!(running.try_wait().unwrap().is_none(), "it has ended");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, healthy).await.expect("healthy");
    // With these in the environment, as the file says, its settings are free of contradictions.
    let text = read("compose.yaml");
    let line = text.lines().find(|line| line.contains("FCM_ENDPOINT=https")).unwrap();
    let line = line.replace("/data", here);
    let variables: Vec<(&str, &str)> = line.split_whitespace().filter_map(|word| word.split_once('=')).collect();
    assert_eq!(variables.len(), 3, "{variables:?}");
    let fanfare = compose(&variables);
    let env: Environment = environment(&fanfare["services"]["fanfare"])
        .into_iter()
        .filter(|(name, _)| !name.ends_with("_FILE") || name.contains("CA_FILE"))
        .collect();
    let config = load(None, &env).unwrap().config;
    let key: Value = serde_json::from_slice(&std::fs::read(&config.fcm.credentials_file).unwrap()).unwrap();
    let endpoint = url::host_and_port(&config.fcm.endpoint);
    assert_eq!(
        endpoint.0,
        url::host_and_port(key["token_uri"].as_str().unwrap()).0,
        "the same host in its certificate"
    );
    assert!(std::fs::read_to_string(&config.fcm.ca_file).unwrap().contains("BEGIN CERTIFICATE"));
    assert!(texts(&emulator["ports"])[0].ends_with(&format!(":{}", endpoint.1)));
    running.kill().await.unwrap();
}

/// The little of URLs that is needed here.
mod url {
    /// Host and port of `scheme://HOST:PORT/...`.
    pub fn host_and_port(url: &str) -> (String, String) {
        let (_, rest) = url.split_once("://").unwrap();
        let (host, port) = rest.split('/').next().unwrap().split_once(':').unwrap();
        (host.to_owned(), port.to_owned())
    }
}

#[test]
fn a_broken_dockerfile_is_seen() {
    for broken in ["RUN x", "FROM debian\nRUN x", "FROM a:1 AS b\nADD x y", "FROM a:1 AS b\nRUN x \\"] {
        assert!(std::panic::catch_unwind(|| stages(broken)).is_err(), "{broken}");
    }
}

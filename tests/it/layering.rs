//! The rules of the house that a machine can check, read from `src/`: who may import whom, who may name which crate,
//! how long a file may get, what may not appear. Each rule is also shown a seeded violation, and has to see it.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

/// The floors, from the ground up. A room imports only from lower floors, and none from its own. The door stands on
/// top of the floor it shares with `cli`, for it has to open onto it.
const FLOORS: &[&[&str]] = &[
    &["config", "telemetry", "metrics", "mutant", "clock", "shutdown"],
    &["domain", "wire", "breaker", "capacity", "emulator"],
    &["store", "ceiling", "fcm"],
    &["fanout", "ledger", "devices", "door", "inspect", "client"],
    &["api"],
    &["app"],
    &["demo", "soak"],
    &["cli"],
    &["main"],
];

/// Crates that only these files (or rooms) may name: what they stand for can then be exchanged in one place.
const OWNERS: &[(&str, &[&str])] =
    &[("axum", &["api/"]), ("sqlx", &["store/"]), ("redis", &["ceiling/"]), ("reqwest", &["fcm/http.rs", "client/"])];

/// What pure code cannot do: wait, read a clock, touch a file or a socket, draw at random. (It may declare a trait whose
/// methods wait: the rooms that implement and call it do the waiting.)
const IMPURE: &[&str] =
    &[".await", "tokio::", "std::fs", "std::net", "std::env", "std::thread", "::now()", "::now_utc()", "rand::"];

/// Names that say nothing about what is inside.
const VAGUE: &[&str] = &["common", "util", "utils", "helper", "helpers", "core", "manager", "types", "misc"];

/// `expect`s outside tests that the whole of `src/` may have, each with an invariant as its message.
const EXPECTS: usize = 5;

/// Most lines of one file that are not tests.
const LINES: usize = 300;

/// One file of `src/`.
struct Source {
    /// Its path inside `src/`, with `/`.
    path: String,
    /// As it is.
    text: String,
    /// Comments and the insides of literals blanked; lines and offsets as in `text`.
    code: String,
    /// `code` with the tests blanked too.
    production: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let code = without_comments_and_literals(text);
        // A file called tests is declared under `#[cfg(test)]` by its parent.
        let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
        let production = if is_test { blank(&code) } else { without_tests(&code) };
        Self { path: path.to_owned(), text: text.to_owned(), code, production }
    }

    /// The room it belongs to: the folder or file right under `src/`.
    fn room(&self) -> &str {
        self.path.split('/').next().unwrap_or_default().trim_end_matches(".rs")
    }

    fn line_of(&self, offset: usize) -> usize {
        self.text[..offset].matches('\n').count() + 1
    }

    fn at(&self, offset: usize, what: &str) -> String {
        format!("src/{}:{}: {what}", self.path, self.line_of(offset))
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let inside = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
                sources.push(Source::new(&inside, &std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(sources.len() > 10, "src/ was not found");
    sources
}

/// Fails with every violation that `rule` finds in `src/`.
fn keeps(rule: impl Fn(&Source) -> Vec<String>) {
    let mut found = String::new();
    for violation in sources().iter().flat_map(rule) {
        let _ = writeln!(found, "  {violation}");
    }
    assert!(found.is_empty(), "\n{found}");
}

/// Demands that `rule` sees something wrong in each of these files, and nothing in the last.
fn sees(rule: impl Fn(&Source) -> Vec<String>, wrong: &[(&str, &str)], right: (&str, &str)) {
    for (path, text) in wrong {
        assert!(!rule(&Source::new(path, text)).is_empty(), "not seen in {path}: {text}");
    }
    assert_eq!(rule(&Source::new(right.0, right.1)), Vec::<String>::new());
}

// --- the floors ---

#[test]
fn a_room_imports_only_from_lower_floors() {
    keeps(imports_from_below);
    sees(
        imports_from_below,
        &[
            ("domain/tally.rs", "use crate::store::Store;"),
            ("store/mod.rs", "use crate::{clock::Clock, fcm::Message};"),
            ("fanout/deliver.rs", "fn f() { super::super::api::serve() }"),
            ("fanout/deliver.rs", "mod inner { use super::super::super::ledger::flush; }"),
            ("ledger/flush.rs", "fn f(x: &crate :: fanout::Slot) {}"),
            ("config.rs", "use super::telemetry::init;"),
            ("store/mod.rs", "#[cfg(test)]\nmod tests { use crate::api::keys; }"),
            ("attic/mod.rs", "fn f() {}"),
            ("app.rs", "use crate::attic::Trunk;"),
            ("demo.rs", "use crate::{app::{App, BuildError}, cli::{Cli}};"),
            ("cli/mod.rs", "pub use crate::main::door;"),
        ],
        (
            "fanout/deliver.rs",
            "use crate::{domain::{tally, store}, fcm}; // crate::api\nuse super::slot; const S: &str = \"crate::api\";",
        ),
    );
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

fn imports_from_below(source: &Source) -> Vec<String> {
    let room = source.room();
    if room == "lib" {
        return Vec::new();
    }
    let Some(own) = floor(room) else {
        return vec![source.at(0, &format!("room {room} stands on no floor"))];
    };
    let mut violations = Vec::new();
    for (offset, other) in imports(source) {
        match floor(&other) {
            _ if other == room => {}
            None => violations.push(source.at(offset, &format!("{other} is no room"))),
            Some(floor) if floor >= own => violations.push(source.at(offset, &format!("{room} imports {other}"))),
            Some(_) => {}
        }
    }
    violations
}

/// Every room a file names by a path from the crate's root, with where.
fn imports(source: &Source) -> Vec<(usize, String)> {
    let code = &source.code;
    let mut found = Vec::new();
    let root = if source.room() == "main" { "fanfare" } else { "crate" };
    for (offset, after) in paths(code, root) {
        for name in heads(&code[after..]) {
            // `crate::*` items that are no module would be `lib.rs`'s own; it has none.
            found.push((offset, name));
        }
    }
    for (offset, after) in paths(code, "super") {
        let Some(rest) = climb_to_root(source, offset, after) else { continue };
        found.extend(heads(&code[rest..]).into_iter().filter(|name| floor(name).is_some()).map(|name| (offset, name)));
    }
    found
}

/// Where `root ::` starts and ends, where it is the head of a path.
fn paths(code: &str, root: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (offset, _) in code.match_indices(root) {
        let before = code[..offset].trim_end();
        let part_of_a_word = code[..offset].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = &code[offset + root.len()..];
        if let Some(after) = rest.trim_start().strip_prefix("::")
            && !part_of_a_word
            && !before.ends_with("::")
        {
            found.push((offset, code.len() - after.len()));
        }
    }
    found
}

/// Follows `super::super::` and says where it goes on, if it has arrived at the crate's root.
fn climb_to_root(source: &Source, offset: usize, mut after: usize) -> Option<usize> {
    let mut steps = 1;
    while let Some(rest) = source.code[after..].trim_start().strip_prefix("super") {
        after = source.code.len() - rest.trim_start().strip_prefix("::")?.len();
        steps += 1;
    }
    let file = source.path.trim_end_matches(".rs").trim_end_matches("/mod");
    let depth = file.split('/').count() + inline_modules(&source.code[..offset]);
    (steps == depth).then_some(after)
}

/// How many `mod name {` are open at the end of `code`.
fn inline_modules(code: &str) -> usize {
    let mut open = Vec::new();
    let mut start = 0;
    for (offset, c) in code.char_indices() {
        if matches!(c, '{' | '}' | ';') {
            let item = code[start..offset].trim();
            match c {
                '{' => open.push(item.split_whitespace().rev().nth(1) == Some("mod")),
                '}' => drop(open.pop()),
                _ => {}
            }
            start = offset + 1;
        }
    }
    open.iter().filter(|is_module| **is_module).count()
}

/// The first names of a path or of a group of them: `a::b` gives a, `{a, b::{c, d}}` gives a and b.
fn heads(rest: &str) -> Vec<String> {
    let name =
        |text: &str| text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = rest.trim_start().strip_prefix('{') else { return vec![name(rest)] };
    let mut names = vec![name(group)];
    let mut depth = 0;
    for (offset, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(name(&group[offset + 1..])),
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

// --- who may name what ---

#[test]
fn a_crate_is_named_only_by_the_file_that_owns_it() {
    keeps(crates_have_owners);
    sees(
        crates_have_owners,
        &[
            ("fcm/oauth.rs", "use reqwest::Client;"),
            ("api/events.rs", "fn f(pool: &sqlx::PgPool) {}"),
            ("fanout/mod.rs", "use ::redis::aio;"),
            ("door/mod.rs", "use axum :: Router;"),
        ],
        ("fcm/http.rs", "use reqwest::Client; use crate::ceiling::redis::x; // sqlx::query"),
    );
}

fn crates_have_owners(source: &Source) -> Vec<String> {
    let mut violations = Vec::new();
    for (name, owners) in OWNERS {
        if owners.iter().any(|owner| source.path.starts_with(owner)) {
            continue;
        }
        // In production code: a test may well ask the emulator with a client of its own.
        // `::redis::` is the crate too, `ceiling::redis::` is not.
        let code = source.production.replace(&format!(" ::{name}"), &format!("   {name}"));
        violations
            .extend(paths(&code, name).into_iter().map(|(offset, _)| source.at(offset, &format!("names {name}"))));
    }
    violations
}

#[test]
fn the_domain_is_pure() {
    keeps(domain_is_pure);
    sees(
        domain_is_pure,
        &[
            ("domain/retry.rs", "fn f() -> u64 { std::time::SystemTime::now() }"),
            ("domain/tally.rs", "pub async fn f() { g().await }"),
            ("domain/ids.rs", "use rand::Rng;"),
        ],
        ("domain/retry.rs", "//! No ::now().\nfn f(now: SystemTime) {}\n#[cfg(test)]\nmod tests { use std::fs; }"),
    );
}

fn domain_is_pure(source: &Source) -> Vec<String> {
    let words = IMPURE.iter().filter(|_| source.room() == "domain");
    words.filter_map(|word| Some(source.at(source.production.find(word)?, &format!("{word} in the domain")))).collect()
}

// --- what may not appear ---

#[test]
fn a_file_says_what_it_owns_and_is_not_too_long() {
    keeps(files_are_small_and_introduced);
    let long = format!("//! Owns.\n{}", "fn f() {}\n".repeat(LINES));
    let tested = format!("//! Owns.\n#[cfg(test)]\nmod tests {{\n{}}}\n", "fn f() {}\n".repeat(LINES));
    sees(
        files_are_small_and_introduced,
        &[
            ("fcm/mod.rs", "use x;\n//! Owns."),
            ("fcm/mod.rs", &long),
            ("store/util.rs", "//! Owns."),
            ("core/a.rs", "//! Owns."),
        ],
        ("fcm/mod.rs", &tested),
    );
}

fn files_are_small_and_introduced(source: &Source) -> Vec<String> {
    let mut violations = Vec::new();
    if !source.text.starts_with("//! ") {
        violations.push(source.at(0, "does not open with what it owns"));
    }
    if let Some(name) = source.path.trim_end_matches(".rs").split('/').find(|name| VAGUE.contains(name)) {
        violations.push(source.at(0, &format!("{name} says nothing about what is inside")));
    }
    let lines = production_lines(source);
    if lines > LINES {
        violations.push(source.at(0, &format!("{lines} lines that are not tests")));
    }
    violations
}

/// Lines that are neither empty nor inside a test.
fn production_lines(source: &Source) -> usize {
    let removed = source.code.lines().zip(source.production.lines()).map(|(code, kept)| code != kept);
    source.text.lines().zip(removed).filter(|(text, is_test)| !text.trim().is_empty() && !is_test).count()
}

#[test]
fn production_code_does_not_panic_print_or_hold_statics() {
    keeps(nothing_forbidden);
    sees(
        nothing_forbidden,
        &[
            ("fcm/mod.rs", "fn f() { x.unwrap() }"),
            ("fcm/mod.rs", "fn f() { x.expect(&text) }"),
            ("fcm/mod.rs", "fn f() { println!(\"x\") }"),
            ("fcm/mod.rs", "pub(crate) static CLIENT: OnceLock<u8> = OnceLock::new();"),
            ("fcm/mod.rs", "thread_local! { }"),
            ("fcm/mod.rs", "fn f() { todo!() }"),
            ("fcm/mod.rs", "// TODO later"),
        ],
        (
            "cli/mod.rs",
            "fn f(x: &'static str) { println!(\".unwrap()\") }\n#[cfg(test)]\nmod tests { fn g() { x.unwrap() } }",
        ),
    );
}

fn nothing_forbidden(source: &Source) -> Vec<String> {
    let code = &source.production;
    let mut violations = Vec::new();
    let mut forbid =
        |offset: Option<usize>, what: &str| violations.extend(offset.map(|offset| source.at(offset, what)));
    forbid(code.find(".unwrap()"), "unwrap");
    forbid(code.find("todo!(").or_else(|| code.find("unimplemented!(")), "unfinished");
    forbid(code.find("thread_local!"), "a static");
    forbid(code.match_indices("static ").map(|(offset, _)| offset).find(|offset| is_item(code, *offset)), "a static");
    forbid(
        code.match_indices(".expect(").map(|(offset, _)| offset).find(|o| !code[*o..].starts_with(".expect(\"")),
        "expect without a message",
    );
    forbid(["TODO", "FIXME"].iter().find_map(|word| source.text.find(word)), "unfinished");
    if !matches!(source.room(), "cli" | "demo" | "main") {
        forbid(code.find("println!(").or_else(|| code.find("print!(")).or_else(|| code.find("dbg!(")), "prints");
    }
    violations
}

/// Whether a word stands where an item starts, not inside a type such as `&'static str`.
fn is_item(code: &str, offset: usize) -> bool {
    let before = code[..offset].rsplit('\n').next().unwrap_or_default().trim();
    before.is_empty() || before == "pub" || (before.starts_with("pub(") && before.ends_with(')'))
}

#[test]
fn invariants_taken_for_granted_are_few() {
    let count: usize = sources().iter().map(|source| source.production.matches(".expect(").count()).sum();
    assert!(count <= EXPECTS, "{count} expects; make an error of some, or argue for more");
}

#[test]
fn every_log_event_has_a_target_of_ours_and_fields() {
    keeps(events_have_fields);
    sees(
        events_have_fields,
        &[
            ("fcm/mod.rs", "fn f() { tracing::info!(target: \"fanfare::fcm\", \"sent\"); }"),
            ("fcm/mod.rs", "fn f() { tracing::info!(n = 1, \"sent\"); }"),
            ("fcm/mod.rs", "fn f() { warn!(target: \"fanfare::elsewhere\", n = 1, \"sent\"); }"),
        ],
        ("fcm/mod.rs", "fn f() { tracing::warn!(\n    target: \"fanfare::fcm\",\n    n = 1,\n    \"sent\"\n); }"),
    );
}

fn events_have_fields(source: &Source) -> Vec<String> {
    let mut violations = Vec::new();
    for level in ["error!(", "warn!(", "info!(", "debug!(", "trace!("] {
        for (offset, _) in source.production.match_indices(level) {
            if source.production[..offset].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let body = offset + level.len()..closing(&source.production, offset + level.len(), ('(', ')'));
            let room = source.text[body.clone()].trim_start().strip_prefix("target: \"fanfare::");
            let room = room.and_then(|rest| rest.split('"').next());
            if room.is_none_or(|room| floor(room).is_none()) {
                violations.push(source.at(offset, "an event without `target: \"fanfare::<room>\"` first"));
            }
            // After the target, before the message: a name that is not inside a literal.
            let fields = source.production[body].split_once(',').map_or("", |(_, rest)| rest);
            if !fields.contains(|c: char| c.is_alphabetic()) {
                violations.push(source.at(offset, "an event without fields"));
            }
        }
    }
    violations
}

// --- reading Rust ---

/// Blanks comments and what stands inside string and character literals; quotes, lines and offsets stay.
fn without_comments_and_literals(text: &str) -> String {
    let mut out = text.as_bytes().to_vec();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let (skip, blank) = token(rest, text[..at].chars().next_back());
        for offset in blank {
            if out[at + offset] != b'\n' {
                out[at + offset] = b' ';
            }
        }
        at += skip.max(1);
        while !text.is_char_boundary(at) {
            at += 1;
        }
    }
    String::from_utf8(out).unwrap()
}

/// Length of what stands at the start of `rest`, and the part of it to blank.
fn token(rest: &str, before: Option<char>) -> (usize, Range<usize>) {
    let until = |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at);
    if rest.starts_with("//") {
        let end = until("\n", 0);
        return (end, 0..end);
    }
    if rest.starts_with("/*") {
        let end = (until("*/", 2) + 2).min(rest.len());
        return (end, 0..end);
    }
    let word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let hashes = rest.strip_prefix('r').map_or(0, |raw| raw.len() - raw.trim_start_matches('#').len());
    if !word && rest.starts_with('r') && rest[1 + hashes..].starts_with('"') {
        let end = until(&format!("\"{}", "#".repeat(hashes)), hashes + 2);
        return ((end + 1 + hashes).min(rest.len()), hashes + 2..end);
    }
    if rest.starts_with('"') {
        let end = literal_end(rest, '"');
        return ((end + 1).min(rest.len()), 1..end);
    }
    // A lifetime has no closing quote right behind its first character.
    let mut chars = rest.chars().skip(1);
    if rest.starts_with('\'') && (chars.next() == Some('\\') || chars.next() == Some('\'')) {
        let end = literal_end(rest, '\'');
        return ((end + 1).min(rest.len()), 1..end);
    }
    (1, 0..0)
}

/// Where the literal that opens `rest` has its closing quote.
fn literal_end(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (offset, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return offset,
            _ => {}
        }
    }
    rest.len()
}

/// Spaces, with the lines and the length of `code`.
fn blank(code: &str) -> String {
    code.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

/// Blanks every item under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut out = code.to_owned();
    while let Some(start) = out.find("#[cfg(test)]") {
        let item = start + "#[cfg(test)]".len();
        let brace = out[item..].find('{').map_or(out.len(), |at| item + at);
        let semicolon = out[item..].find(';').map_or(out.len(), |at| item + at);
        let end =
            if semicolon < brace { semicolon + 1 } else { (closing(&out, brace + 1, ('{', '}')) + 1).min(out.len()) };
        let blank = blank(&out[start..end]);
        out.replace_range(start..end, &blank);
    }
    out
}

/// Where the bracket that was opened just before `from` closes.
fn closing(code: &str, from: usize, (open, close): (char, char)) -> usize {
    let mut depth = 0;
    for (offset, c) in code.get(from..).unwrap_or_default().char_indices() {
        match c {
            _ if c == open => depth += 1,
            _ if c == close && depth == 0 => return from + offset,
            _ if c == close => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

#[test]
fn comments_and_literals_are_not_code() {
    let text = r####"a("b // c", r#"d " e"#, 'f', '\'', '"') /* g */ + 'static // h
i<'a>("é\" j") k"####;
    let code = without_comments_and_literals(text);
    assert_eq!(code.len(), text.len());
    let words: Vec<&str> = code.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    assert_eq!(words, ["a", "r", "static", "i", "a", "k"], "{code}");
}

//! Owns `fanfare send`: one event from the command line.
//! Must never know: which fields a type needs; the service says.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::target::{Target, print_json};
use super::{Failure, fanout, print};
use crate::config;
use crate::wire::{self, EventRequest, SupersedesRequest};

const EXAMPLE: &str = "\
Which fields a type needs, the service says when one is missing. A goal:
  fanfare send goal --match 4711 --subject match:4711 --subject team:ars --field home=Arsenal --field away=Chelsea \\
    --field score=2-1 --field minute=67 --field player=Saka --wait";

/// Arguments of `fanfare send`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct SendArgs {
    #[command(flatten)]
    target: Target,
    /// Event type: goal, red_card, full_time ...
    #[arg(value_name = "TYPE", required_unless_present = "file")]
    kind: Option<String>,
    /// The match.
    #[arg(long = "match", value_name = "ID", required_unless_present = "file")]
    match_id: Option<String>,
    /// What must be followed, such as team:ars; may be repeated [default: match:ID].
    #[arg(long = "subject", value_name = "KIND:ID")]
    subjects: Vec<String>,
    /// A value for the texts; may be repeated.
    #[arg(long = "field", value_name = "NAME=VALUE", value_parser = pair)]
    fields: Vec<(String, String)>,
    /// A value passed to the app; may be repeated.
    #[arg(long = "data", value_name = "NAME=VALUE", value_parser = pair)]
    data: Vec<(String, String)>,
    /// The event's id: the same id and content is the same fan-out, for which --occurred-at must be the same too
    /// [default: a new one].
    #[arg(long)]
    id: Option<String>,
    /// When it happened, RFC 3339 [default: now].
    #[arg(long, value_name = "TIME")]
    occurred_at: Option<String>,
    /// Seconds it is useful [default: the type's].
    #[arg(long, value_name = "SECONDS")]
    useful_for: Option<u32>,
    /// The id of an event this one corrects: that one stops at once.
    #[arg(long, value_name = "EVENT", requires = "mode")]
    supersedes: Option<String>,
    /// Who is told of a correction: whoever got what is wrong, or everybody.
    #[arg(long, value_name = "MODE", requires = "supersedes", value_parser = ["retract", "replace"])]
    mode: Option<String>,
    /// Read the whole event as JSON from this file, - for standard input.
    #[arg(long, conflicts_with_all = ["kind", "match_id", "subjects", "fields", "data", "id", "occurred_at", "useful_for", "supersedes", "mode"])]
    file: Option<PathBuf>,
    /// Wait until it is settled, at most this many seconds [default: no wait; without a number: 120].
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "120")]
    wait: Option<u64>,
}

fn pair(raw: &str) -> Result<(String, String), String> {
    let (name, value) = raw.split_once('=').ok_or("must be NAME=VALUE")?;
    if name.is_empty() { Err("the name is empty".to_owned()) } else { Ok((name.to_owned(), value.to_owned())) }
}

/// Runs `fanfare send`.
///
/// # Errors
/// [`Failure`] when the event cannot be read, the service does not answer or refuses it, or waiting was in vain.
pub async fn run(args: SendArgs) -> Result<(), Failure> {
    let (target, wait) = (args.target.clone(), args.wait);
    let client = target.client()?;
    let id_is_made = args.id.is_none() && args.file.is_none();
    let event = event(args).await?;
    let posted = client.post_event(&event).await;
    let (accepted, repeat) = posted.map_err(|fault| again(target.failure(fault), id_is_made.then_some(&*event.id)))?;
    if let Some(seconds) = wait {
        return fanout::wait(&target, &accepted.fanout_id, seconds).await;
    }
    if target.json {
        return print_json(&accepted);
    }
    let what = match (&accepted.duplicate_of, &accepted.superseded_by) {
        (Some(event), _) => format!("tells the same as {event}, which is under way"),
        (None, Some(by)) => format!("accepted, and superseded by fan-out {by} before it was sent"),
        (None, None) => if repeat { "was accepted before" } else { "accepted" }.to_owned(),
    };
    let (id, fanout) = (&event.id, &accepted.fanout_id);
    print(&format!("event {id} {what}: fan-out {fanout}\nfollow it: fanfare fanout show {fanout} --wait\n"))
}

/// What failed for now may have been kept all the same. Sent again under another id it would be another event.
fn again(failure: Failure, made_id: Option<&str>) -> Failure {
    match (&failure, made_id) {
        (Failure::Unavailable(_) | Failure::Paused(_), Some(id)) => {
            failure.and(&format!("\n  it may have been kept: send the same again with --id {id}, and it is sent once"))
        }
        _ => failure,
    }
}

async fn event(args: SendArgs) -> Result<EventRequest, Failure> {
    if let Some(file) = args.file {
        let text = text(&file).map_err(|fault| Failure::Runtime(format!("{}: {fault}", file.display())))?;
        return wire::read(&text).map_err(|fault| Failure::Runtime(format!("{}: {fault}", file.display())));
    }
    let match_id = args.match_id.unwrap_or_default();
    let subjects = if args.subjects.is_empty() { vec![format!("match:{match_id}")] } else { args.subjects };
    let now = || OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
    Ok(EventRequest {
        id: args.id.unwrap_or_else(|| format!("cli-{}", uuid::Uuid::now_v7())),
        kind: args.kind.unwrap_or_default(),
        match_id,
        occurred_at: args.occurred_at.unwrap_or_else(now),
        subjects,
        fields: values("--field", args.fields)?,
        data: values("--data", args.data)?,
        supersedes: args.supersedes.zip(args.mode).map(|(event_id, mode)| SupersedesRequest { event_id, mode }),
        useful_for_s: args.useful_for,
    })
}

fn text(file: &std::path::Path) -> std::io::Result<Vec<u8>> {
    if file.as_os_str() == "-" { config::read(std::io::stdin()) } else { config::read_file(file) }
}

/// What reads as a whole number is sent as one (`minute=67`), everything else as text (`score=2-1`, `shirt=07`).
fn values(option: &str, pairs: Vec<(String, String)>) -> Result<BTreeMap<String, Value>, Failure> {
    let value = |raw: String| match raw.parse::<i64>() {
        Ok(number) if number.to_string() == raw => Value::from(number),
        _ => Value::from(raw),
    };
    let mut values = BTreeMap::new();
    for (name, raw) in pairs {
        if values.contains_key(&name) {
            return Err(Failure::Usage(format!("{option} {name} is given twice")));
        }
        values.insert(name, value(raw));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        send: SendArgs,
    }

    fn parse(args: &[&str]) -> Result<SendArgs, clap::Error> {
        Line::try_parse_from([&["send"], args].concat()).map(|line| line.send)
    }

    #[tokio::test]
    async fn a_goal_needs_only_its_match_and_fields() {
        let args = ["goal", "--match", "4711", "--field", "score=2-1", "--field", "minute=67", "--data", "shirt=07"];
        let event = event(parse(&args).unwrap()).await.unwrap();
        assert_eq!((event.kind.as_str(), &event.subjects[..]), ("goal", &["match:4711".to_owned()][..]));
        assert_eq!((&event.fields["score"], &event.fields["minute"]), (&Value::from("2-1"), &Value::from(67)));
        assert_eq!(event.data["shirt"], Value::from("07"));
        assert!(OffsetDateTime::parse(&event.occurred_at, &Rfc3339).is_ok());
    }

    #[test]
    fn what_failed_for_now_tells_the_id_it_was_given() {
        let told = |failure: Failure, id| again(failure, id).to_string();
        assert!(told(Failure::Unavailable("away".into()), Some("cli-1")).contains("--id cli-1"));
        assert!(told(Failure::Paused("full".into()), Some("cli-1")).contains("--id cli-1"));
        assert_eq!(told(Failure::Unavailable("away".into()), None), "away", "the caller knows it");
        assert_eq!(told(Failure::Runtime("invalid".into()), Some("cli-1")), "invalid", "nothing was kept");
    }

    #[tokio::test]
    async fn a_field_given_twice_is_a_usage_error() {
        for option in ["--field", "--data"] {
            let args = ["goal", "--match", "1", option, "home=a", option, "home=b"];
            let Err(Failure::Usage(why)) = event(parse(&args).unwrap()).await else { panic!() };
            assert!(why.contains(option) && why.contains("home"), "{why}");
        }
    }

    #[tokio::test]
    async fn an_event_may_come_from_a_file_with_its_faults_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("event.json");
        std::fs::write(&file, r#"{"id":"e","type":"goal","match_id":7}"#).unwrap();
        let args = parse(&["--file", file.to_str().unwrap()]).unwrap();
        let Err(Failure::Runtime(why)) = event(args).await else { panic!() };
        assert!(why.contains("event.json") && why.contains("/match_id"), "{why}");
    }

    #[test]
    fn half_an_event_is_a_usage_error() {
        for args in
            [&["goal"][..], &["--match", "1"], &["goal", "--match", "1", "--field", "x"], &["goal", "--file", "-"]]
        {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}

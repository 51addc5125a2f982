//! Owns what `fanfare plan limiter` says to people: its tables and its plot.
//! Must never know: how any of the figures is worked out.

use super::Answer;
use crate::capacity::limiter::{Kind, Limiter};
use crate::capacity::plot::{Line, Panel, svg};
use crate::capacity::sample::Estimate;
use crate::capacity::split::{Cost, Wait};
use crate::cli::plan::table::{row, table};
use crate::cli::plan::unit::{digits, figure, given, time};

pub(super) fn text(answer: &Answer) -> String {
    let mut text = format!("{}\n\n{}\n", headline(answer), table(&figures(answer)));
    if let Some(observed) = &answer.observed {
        let times = observed
            .times_predicted
            .map_or("none by the formula".to_owned(), |times| format!("{} times the formula's", figure(times)));
        let random = match answer.question.retries {
            0 => String::new(),
            _ => format!("; {} with retries to a random limiter", shown(answer.simulation[1].refused_per_s)),
        };
        text.push_str(&format!("observed: {}/s refused, {times}{random}\n\n", figure(observed.refused_per_s)));
    }
    text.push_str(&notes(answer));
    text.push_str(&format!("\nWhat splitting this limit over n costs, at this rate\n\n{}", table(&splits(answer))));
    text.push('\n');
    text.push_str(SPLIT_NOTE);
    text
}

fn headline(answer: &Answer) -> String {
    let Limiter { rate_per_s, limit, window_s, limiters, retries, kind } = answer.question;
    let kind = match kind {
        Kind::Window => "fixed windows".to_owned(),
        Kind::Bucket { burst } => format!("buckets that hold {burst}"),
    };
    let each = match answer.limit_each * limiters {
        all if all == limit => format!("{} each", answer.limit_each),
        all => format!("{} each, which is {all} of {limit}", answer.limit_each),
    };
    format!(
        "{} requests/s before retries; {limit} pass per {} s in {kind}; {limiters} limiter{} ({each}); {retries} \
         retr{}",
        given(rate_per_s),
        given(window_s),
        if limiters == 1 { "" } else { "s" },
        if retries == 1 { "y" } else { "ies" },
    )
}

fn figures(answer: &Answer) -> Vec<Vec<String>> {
    let (said, window) = (&answer.formula, answer.question.kind == Kind::Window);
    let same = &answer.simulation[0];
    let line = |name: &str, unit: &str, formula: f64, seen: Option<Estimate>| {
        let verdict = seen.map_or("", |seen| seen.says_of(formula, same.seen).as_str());
        row(&[name, &figure(formula), &seen.map(shown).unwrap_or_default(), unit, verdict])
    };
    let mut rows = vec![row(&["", "formula", "simulated"])];
    if window {
        rows.push(line("P(N > L): a limiter's window is exceeded", "", said.over_share, Some(same.over_share)));
        if let Some(mean) = said.mean_when_over {
            rows.push(line("E[N | N > L]: requests in such a window", "", mean, same.mean_when_over));
        }
        rows.push(line("exceeded windows", "/min", said.exceeded_per_min.unwrap_or_default(), None));
    } else {
        rows.push(line("share of time a bucket is empty", "", said.over_share, Some(same.over_share)));
    }
    rows.push(line("refusals, retries to the same limiter", "/s", said.refused_per_s, Some(same.refused_per_s)));
    if let Some(next) = said.refused_from_next_per_s {
        rows.push(line("  the same, counted from limit + 1", "/s", next, None));
    }
    rows.push(line("served", "/s", said.served_per_s, Some(same.served_per_s)));
    rows.push(line("never served", "/s", said.lost_per_s, None));
    if answer.question.retries > 0 {
        let random = &answer.simulation[1];
        rows.push(row(&["refusals, retries to a random limiter", "", &shown(random.refused_per_s), "/s"]));
        rows.push(row(&["  served then", "", &shown(random.served_per_s), "/s"]));
    }
    rows
}

fn shown(estimate: Estimate) -> String {
    format!("{} ± {}", figure(estimate.value), digits(estimate.within, 2))
}

fn notes(answer: &Answer) -> String {
    let same = &answer.simulation[0];
    let mut text =
        format!("Simulated: {} windows, seed {}; ± is the half of the 99.9 % interval.\n", same.windows, answer.seed);
    if answer.formula.refused_from_next_per_s.is_some() {
        text.push_str(
            "Refusals are (1 + retries) x E[(N - L)+]: with a limit of L, request L + 1 is the first refused. Counted from\n\
             limit + 1, as some do, each exceeded window loses one: (1 + retries) x E[(N - L - 1)+], which is too little.\n",
        );
    }
    if answer.question.retries > 0 && answer.question.limiters > 1 {
        text.push_str(
            "The formula is for retries to the same limiter, which is still full. At a random one some pass, and take the\n\
             place of first requests there: no formula, only the simulation.\n",
        );
    }
    text
}

const SPLIT_NOTE: &str = "\
Each limiter lets whole requests pass, so that n which does not divide the limit loses the rest of it.
A limiter refuses. Fanfare's ceiling makes requests wait: in the `split` mode each of n instances has 1/n of the rate
(and a burst of 10 ms of it, at least 1). Nobody is refused, but each waits n times as long, and what one instance sends
alone, a chunk of up to 500 recipients, takes n times as long. With Redis (`shared`) it is the row n = 1 for any n.
";

fn splits(answer: &Answer) -> Vec<Vec<String>> {
    let mut rows = vec![row(&[
        "n",
        "each",
        "windows refuse",
        "buckets refuse",
        "split: mean wait",
        "p99 wait",
        "500 by one instance",
    ])];
    rows.extend(answer.split.iter().map(|cost| {
        let wait = |of: fn(&Wait) -> f64| cost.split.as_ref().map_or("no end".to_owned(), |wait| time(of(wait)));
        row(&[
            &cost.limiters.to_string(),
            &cost.limit_each.to_string(),
            &format!("{}/s", figure(cost.window_refused_per_s)),
            &format!("{}/s", figure(cost.bucket_refused_per_s)),
            &wait(|wait| wait.mean_s.value),
            &wait(|wait| wait.p99_s),
            &time(cost.chunk_s),
        ])
    }));
    rows
}

pub(super) fn plot(answer: &Answer) -> String {
    let Limiter { rate_per_s, limit, window_s, retries, .. } = answer.question;
    let places: Vec<String> = answer.split.iter().map(|cost| cost.limiters.to_string()).collect();
    let line = |name: &str, of: &dyn Fn(&Cost) -> Option<f64>| Line {
        name: name.to_owned(),
        values: answer.split.iter().map(of).collect(),
    };
    let what = format!("{}/s against {limit} per {} s, retries: {retries}", given(rate_per_s), given(window_s));
    let refusals = Panel {
        title: format!("Refusals per second: {what}"),
        lines: vec![
            line("fixed windows", &|cost| Some(cost.window_refused_per_s)),
            line("buckets of a full window", &|cost| Some(cost.bucket_refused_per_s)),
        ],
    };
    let waits = Panel {
        title: "Fanfare's split mode: wait for a grant, ms; nobody is refused".to_owned(),
        lines: vec![
            line("99th percentile", &|cost| Some(cost.split?.p99_s * 1000.0)),
            line("mean", &|cost| Some(cost.split?.mean_s.value * 1000.0)),
        ],
    };
    svg("limiters or instances that share the limit", &places, &[refusals, waits])
}

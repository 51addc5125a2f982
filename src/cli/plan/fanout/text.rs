//! Owns what `fanfare plan fanout` says to people.
//! Must never know: how any of the figures is worked out.

use super::{Answer, Both};
use crate::capacity::course::{Brake, Courses};
use crate::capacity::fanout::{Fanout, little};
use crate::capacity::quota::{Goal, Reach, Shape};
use crate::cli::plan::table::{row, table};
use crate::cli::plan::unit::{figure, given, given_time, time};

pub(super) fn text(answer: &Answer) -> String {
    let question = &answer.question;
    let mut text = format!("{}\n\n{}\n", law(answer), table(&figures(answer)));
    let stalls = answer.lent.formula.stalls;
    if stalls > 0.0 {
        text.push_str(&format!(
            "{} of {} recipients meet a stall of {} s on average: their own answer is that late, and with it the end.\nLending \
             keeps it from holding up the others: a slot is given on after {} s.\n",
            figure(stalls),
            question.recipients,
            given(question.stall_s),
            given(question.stall_after_s)
        ));
    }
    text.push_str(&format!(
        "Simulated: {} fan-outs, seed {}. The formulas are right to a few per cent.\n\nbottleneck  {}\n{}",
        answer.lent.simulation.runs,
        answer.seed,
        answer.bottleneck.as_str(),
        table(&brakes(&answer.lent.simulation))
    ));
    text.push_str(&format!("\n{}", quota(&answer.quota)));
    if let Some(reach) = &answer.goal {
        text.push_str(&goal_said(answer, reach));
    }
    text
}

/// Little's law with the numbers given.
fn law(answer: &Answer) -> String {
    let Fanout { recipients, slots, instances, latency, connections, streams, ceiling_per_s, .. } = answer.question;
    let mean = given_time(latency.mean_s);
    let all = slots * instances;
    let of = if instances > 1 { format!(" ({slots} at each of {instances} instances)") } else { String::new() };
    format!(
        "{recipients} recipients. Little's law: {all} slots{of} at {mean} are {}/s, not {all}.\n{connections} connection{} x \
         {streams} streams{} carry {}/s; the ceiling lets {}/s pass.",
        per_s(little(all as f64, latency.mean_s)),
        if connections == 1 { "" } else { "s" },
        if instances > 1 { " at each" } else { "" },
        per_s(answer.lent.formula.streams_per_s),
        given(ceiling_per_s),
    )
}

fn per_s(value: f64) -> String {
    format!("{value:.0}")
}

fn figures(answer: &Answer) -> Vec<Vec<String>> {
    let stalls = answer.lent.formula.stalls;
    let lent = format!("{} lent: formula", answer.question.lent);
    if stalls == 0.0 {
        // Nothing to lend for: both would say the same.
        let head = row(&["", "formula", "simulated"]);
        return [head].into_iter().chain(lines(&answer.lent, stalls).into_iter().map(Vec::from)).collect();
    }
    let head = row(&["", "strict: formula", "simulated", &lent, "simulated"]);
    let both = lines(&answer.strict, stalls).into_iter().zip(lines(&answer.lent, stalls));
    let beside = both.map(|([name, a, b], [_, c, d])| vec![name, a, b, c, d]);
    [head].into_iter().chain(beside).collect()
}

/// Name, formula and simulation of each figure.
fn lines(both: &Both, stalls: f64) -> Vec<[String; 3]> {
    let (said, seen) = (&both.formula, &both.simulation);
    let line = |name: &str, formula: Option<f64>, seen: Option<f64>| {
        [name.to_owned(), formula.map(time).unwrap_or_default(), seen.map(time).unwrap_or_default()]
    };
    let mut lines = vec![line("the end, mean", Some(said.mean_s), Some(seen.mean_s.value))];
    if stalls > 0.0 {
        if said.typical_s.is_some() {
            let few_many = format!("  with {:.0} to {:.0} stalls", stalls.floor(), stalls.ceil());
            lines.push(line(&few_many, said.typical_s, seen.typical_s));
        }
        lines.push(line("  without stalls", Some(said.calm_s), None));
    }
    lines.push(line("  of 20 fan-outs 18 end between", None, Some(seen.from_5_to_95_s.0)));
    lines.push(line("  and", None, Some(seen.from_5_to_95_s.1)));
    lines.push(line("  of 100 fan-outs 99 have ended after", None, Some(seen.p99_s)));
    if stalls > 0.0 {
        lines.push(line("all who met no stall are done", None, Some(seen.others_s)));
    }
    lines.push(line("99 % of the recipients are done", Some(said.p99_recipient_s), Some(seen.p99_recipient_s)));
    lines
}

fn brakes(courses: &Courses) -> Vec<Vec<String>> {
    let all: f64 = courses.held_s.iter().map(|(_, held)| held).sum();
    let took = courses.held_s.iter().filter(|(_, held)| *held > 0.0);
    took.map(|(brake, held)| {
        let what = match brake {
            Brake::Answers | Brake::Stalls => format!("  then waited for {}", brake.as_str()),
            other => format!("  held up by {}", other.as_str()),
        };
        row(&[&what, &time(*held), &format!("{:.0} %", 100.0 * held / all)])
    })
    .collect()
}

fn quota(shape: &Shape) -> String {
    let Shape { rate_per_s, burst, most_per_min, quota_per_min, fits, highest_per_s } = *shape;
    let fits = if fits {
        "it fits".to_owned()
    } else {
        format!(
            "TOO MUCH: `fanfare config check` refuses it; at most {}/s fit",
            given((highest_per_s * 100.0).floor() / 100.0)
        )
    };
    format!(
        "quota       burst {} + 60 x {}/s = {most_per_min:.0} requests in the worst minute, of {quota_per_min}: {fits}\n",
        given(burst),
        given(rate_per_s)
    )
}

fn goal_said(answer: &Answer, reach: &Reach) -> String {
    let Goal { share, recipients, within_s } = reach.goal;
    let goal = format!("{} % of {recipients} within {} s", given(100.0 * share), given(within_s));
    let slots = answer.lent.formula.slots_per_s.min(answer.lent.formula.streams_per_s);
    let needed = format!("it takes {} requests/s", per_s(reach.needed_per_s));
    let said = if !reach.under_the_quota {
        format!(
            "NOT POSSIBLE under this quota: {needed}, the quota allows {:.0}.\n            At best {:.0} recipients ({:.0} %) \
             within that time, or the goal after {}. It would take a quota of {:.0}/min.",
            answer.quota.highest_per_s,
            reach.most_recipients,
            100.0 * reach.most_recipients / recipients as f64,
            time(reach.least_s),
            reach.quota_needed_per_min
        )
    } else if !reach.at_this_rate {
        format!("possible under the quota, not at --ceiling {}: {needed}", given(answer.quota.rate_per_s))
    } else if slots < reach.needed_per_s {
        format!("possible under the quota, not with these slots and streams ({}/s): {needed}", per_s(slots))
    } else {
        format!("possible: {needed}")
    };
    format!("goal        {goal}: {said}\n")
}

//! Owns the page: verdict, plots and tables in one file that needs no script and nothing from anywhere.
//! Must never know: how a plot is drawn.

use super::super::verdict::State;
use super::svg::escaped;
use super::{Report, plots};

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1c2126;--soft:#5b6570;--paper:#fff;--card:#f5f6f8;--grid:#dde1e6;--c1:#1769c4;--c2:#c2410c;
--c3:#8a6d00;--c4:#6d3fb8;--c5:#b01657;--ok:#18703c;--bad:#b3261e;--fault:#c2410c}
@media(prefers-color-scheme:dark){:root{--ink:#e7eaee;--soft:#9aa5b1;--paper:#14181c;--card:#1d2329;--grid:#323a43;--c1:#6cb0ff;
--c2:#ff9a6b;--c3:#e2c04a;--c4:#bda0ff;--c5:#ff86b4;--ok:#6fd196;--bad:#ff8a80;--fault:#ff9a6b}}
*{box-sizing:border-box}body{margin:0 auto;max-width:960px;padding:24px 20px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}h1{font-size:22px;margin:0 0 4px}h2{font-size:17px;margin:30px 0 8px}p{margin:4px 0}
.soft{color:var(--soft)}table{border-collapse:collapse;width:100%;font-size:14px}td,th{text-align:left;padding:5px 10px 5px 0;
border-bottom:1px solid var(--grid);vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
td:nth-child(2){white-space:nowrap}.ok{color:var(--ok);font-weight:600}.bad{color:var(--bad);font-weight:600}.cols{display:grid;grid-template-columns:1fr 1fr;gap:18px 32px;align-items:start}
@media(max-width:700px){.cols{grid-template-columns:1fr}}figure{margin:14px 0;padding:12px 14px;background:var(--card);border-radius:8px}
figcaption{font-weight:600}.legend{font-size:12px;color:var(--soft)}.legend span{margin-right:14px;white-space:nowrap}
.legend i{display:inline-block;width:10px;height:10px;margin-right:5px;border-radius:2px}
svg{display:block;width:100%;height:auto}svg text{font-size:11px;fill:var(--soft)}.end{text-anchor:end}.mid{text-anchor:middle}
.grid{stroke:var(--grid);fill:none}.line{fill:none;stroke-width:1.8}
.c1{fill:var(--c1);background:var(--c1)}.c2{fill:var(--c2);background:var(--c2)}.c3{fill:var(--c3);background:var(--c3)}
.c4{fill:var(--c4);background:var(--c4)}.c5{fill:var(--c5);background:var(--c5)}.none{fill:var(--grid);background:var(--grid)}
.line.c1{fill:none;stroke:var(--c1)}.line.c2{fill:none;stroke:var(--c2)}.line.c3{fill:none;stroke:var(--c3)}
.line.c4{fill:none;stroke:var(--c4)}.line.c5{fill:none;stroke:var(--c5)}
.limit{stroke:var(--bad);stroke-dasharray:5 4;background:var(--bad)}.faint{opacity:.5}.span{opacity:.16}
.fault{fill:var(--fault);background:var(--fault)}i.fault{opacity:.3}";

/// The page.
#[must_use]
pub fn page(r: &Report) -> String {
    let mut body = format!("<h1>{}</h1>{}", escaped(&r.headline()), setup(r));
    body.push_str("<h2>Verdict</h2>");
    body.push_str(&verdict(r));
    body.push_str("<h2>Over time</h2>");
    body.push_str(&plots::all(r).concat());
    body.push_str("<h2>Behind the pitch, ms</h2>");
    body.push_str(&freshness(r));
    body.push_str("<h2>Counts</h2><div class=\"cols\">");
    body.push_str(&counts("Totals", &totals(r)));
    body.push_str(&counts("Outcomes", &pairs(&r.outcomes)));
    body.push_str(&counts("Answers of the provider", &pairs(&r.answers)));
    body.push_str(&counts("What the service complained of", &pairs(&r.complaints)));
    body.push_str("</div>");
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{}</title><style>{STYLE}</style></head>\n<body>{body}</body></html>\n",
        escaped(&r.headline())
    )
}

fn setup(r: &Report) -> String {
    let s = &r.setup;
    let absent: Vec<String> = r.absent.iter().map(|a| format!("{} ({})", a.fault, a.why)).collect();
    let absent =
        if absent.is_empty() { String::new() } else { format!("<p>Not done: {}.</p>", escaped(&absent.join("; "))) };
    format!(
        "<p class=\"soft\">Fanfare {}; {} instance(s), {}, Redis {}; ceiling {} requests/s; {} matches, {} devices, the largest \
         audience {}.</p>{absent}",
        escaped(&s.version),
        s.instances,
        escaped(&s.database),
        escaped(&s.redis),
        s.rate,
        s.matches,
        s.devices,
        s.largest_audience
    )
}

fn verdict(r: &Report) -> String {
    let row = |i: &super::Invariant| {
        let class = match i.state {
            State::Ok => "ok",
            State::Violated => "bad",
            State::NotJudged => "soft",
        };
        let (name, state, says) = (escaped(&i.name), i.state.as_str(), escaped(&i.says));
        format!("<tr><td>{name}</td><td class=\"{class}\">{state}</td><td>{says}</td></tr>")
    };
    format!("<table>{}</table>", r.invariants.iter().map(row).collect::<String>())
}

fn freshness(r: &Report) -> String {
    let row = |(kind, t): (&String, &super::Freshness)| {
        let numbers = [t.messages, t.p50_ms, t.p95_ms, t.p99_ms, t.max_ms];
        let cells: String = numbers.iter().map(|n| format!("<td class=\"n\">{n}</td>")).collect();
        format!("<tr><td>{}</td>{cells}</tr>", escaped(kind))
    };
    let head = ["messages", "p50", "p95", "p99", "latest"].map(|name| format!("<th class=\"n\">{name}</th>")).concat();
    format!("<table><tr><th>type</th>{head}</tr>{}</table>", r.freshness.iter().map(row).collect::<String>())
}

/// The totals by name, for the tables of page and summary.
pub(super) fn totals(r: &Report) -> Vec<(String, u64)> {
    let t = &r.totals;
    let named = [
        ("posts", t.posts),
        ("too late on arrival", t.too_late),
        ("fan-outs", t.fanouts),
        ("recipients", t.recipients),
        ("delivered", t.delivered),
        ("failed", t.failed),
        ("attempts", t.attempts),
        ("retried", t.retried),
        ("throttled", t.throttled),
        ("stalled over 1 s", t.stalled),
        ("slowest_send_ms", t.slowest_send_ms),
        ("stall episodes (15 s and more)", r.stalls.episodes),
        ("duplicates", t.duplicates),
        ("kill -9", t.kills),
        ("SIGTERM", t.terminated),
    ];
    named.map(|(name, n)| (name.to_owned(), n)).to_vec()
}

fn pairs(counts: &std::collections::BTreeMap<String, u64>) -> Vec<(String, u64)> {
    counts.iter().map(|(name, n)| (name.clone(), *n)).collect()
}

fn counts(title: &str, rows: &[(String, u64)]) -> String {
    let row = |(name, n): &(String, u64)| format!("<tr><td>{}</td><td class=\"n\">{n}</td></tr>", escaped(name));
    let none = if rows.is_empty() { "<tr><td class=\"soft\">nothing</td></tr>" } else { "" };
    format!("<table><tr><th colspan=\"2\">{title}</th></tr>{}{none}</table>", rows.iter().map(row).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::report::tests::report;

    #[test]
    fn the_page_needs_nothing_from_anywhere_and_runs_nothing() {
        let page = page(&report());
        for word in ["http://", "https://", "<script", "src=", "@import", "url(", "<link"] {
            assert!(!page.contains(word), "{word}");
        }
        assert_eq!(page.matches("<svg").count(), 6);
        assert_eq!(page.matches("<figure>").count(), page.matches("</figure>").count());
    }

    #[test]
    fn every_invariant_is_told_with_its_state_and_nothing_is_taken_for_markup() {
        let mut violated = report();
        violated.invariants[0].state = State::Violated;
        violated.complaints.insert("<img onerror=x>".into(), 1);
        let page = page(&violated);
        assert!(page.contains("<td class=\"bad\">VIOLATED</td>") && !page.contains("<img"), "{page}");
        assert!(violated.invariants.iter().all(|i| page.contains(&format!("<td>{}</td>", i.name))));
    }
}

//! Owns the summary for the page of a CI job, in Markdown.
//! Must never know: plots.

use super::html::totals;
use super::{Report, Setup};

/// The summary.
#[must_use]
pub fn summary(r: &Report) -> String {
    let Setup { version, rate, instances, database, redis, matches, devices, .. } = &r.setup;
    let mut text = format!(
        "### {}\n\nFanfare {version}, {instances} instance(s) on {database}, Redis {redis}, ceiling {rate} requests/s; \
         {matches} matches, {devices} devices.\n\n| invariant | | |\n|---|---|---|\n",
        cell(&r.headline())
    );
    for i in &r.invariants {
        text.push_str(&format!("| {} | **{}** | {} |\n", cell(&i.name), i.state.as_str(), cell(&i.says)));
    }
    for absent in &r.absent {
        text.push_str(&format!("\nNot done: {} ({}).\n", cell(&absent.fault), cell(&absent.why)));
    }
    text.push_str("\n| total | |\n|---|---:|\n");
    for (name, n) in totals(r) {
        text.push_str(&format!("| {name} | {n} |\n"));
    }
    text.push_str("\n| behind the pitch, ms | messages | p50 | p95 | p99 | latest |\n|---|---:|---:|---:|---:|---:|\n");
    for (kind, f) in &r.freshness {
        let numbers = [f.messages, f.p50_ms, f.p95_ms, f.p99_ms, f.max_ms].map(|n| n.to_string()).join(" | ");
        text.push_str(&format!("| {} | {numbers} |\n", cell(kind)));
    }
    text
}

/// Text that stays in its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::report::tests::report;

    #[test]
    fn every_row_has_the_cells_of_its_table() {
        let mut told = report();
        told.invariants[0].says = "a | b\n<c>".into();
        let text = summary(&told);
        let widths: Vec<usize> =
            text.split("\n\n").filter(|part| part.starts_with('|')).map(|part| part.lines().count()).collect();
        assert_eq!(widths[0], 2 + told.invariants.len(), "{text}");
        assert!(text.contains("a \\| b &lt;c>") && text.contains("| delivered | 3 |"), "{text}");
    }
}

//! Owns how a goal is written on the command line.
//! Must never know: whether it can be reached.

use crate::capacity::quota::Goal;
use crate::cli::plan::unit;

/// `90% of 1.9M within 2m`.
pub(super) fn parse(text: &str) -> Result<Goal, String> {
    let form = "write it like '90% of 1.9M within 2m'";
    let text = text.replace(" %", "%");
    let words: Vec<&str> = text.split_whitespace().collect();
    let [share, "of", count, "within", within] = words[..] else { return Err(form.to_owned()) };
    let share = unit::share(share).map_err(|fault| format!("{share}: {fault}; {form}"))?;
    let within_s = unit::some_seconds(within).map_err(|fault| format!("{within}: {fault}; {form}"))?;
    let (digits, times) = match count.strip_suffix(['k', 'K']).map(|n| (n, 1e3)) {
        Some(thousands) => thousands,
        None => count.strip_suffix('M').map_or((count, 1.0), |n| (n, 1e6)),
    };
    let recipients = digits.parse::<f64>().ok().map(|n| n * times).filter(|n| (1.0..=1e9).contains(n));
    let recipients = recipients.ok_or_else(|| format!("{count}: write a number up to 1000M; {form}"))? as u64;
    Ok(Goal { share, recipients, within_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_a_sentence() {
        let said = parse("90% of 1.9M within 2m").unwrap();
        assert_eq!(said, Goal { share: 0.9, recipients: 1_900_000, within_s: 120.0 });
        assert_eq!(parse("90 % of 1900k within 120s").unwrap(), said);
        assert_eq!(parse("1 of 20 within 1s").unwrap().recipients, 20);
        for text in
            ["", "90%", "90% of many within 2m", "200% of 10 within 2m", "90% of 10 within 2", "90% of 0 within 1s"]
        {
            assert!(parse(text).unwrap_err().contains("90% of 1.9M within 2m"), "{text}");
        }
    }
}

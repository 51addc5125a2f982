//! Owns how times, shares and rates are written on the command line and in its answers.
//! Must never know: what they are of.

/// Seconds, from `250ms`, `1s`, `15.4s`, `2m`, `1h`.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("write a number and its unit: 250ms, 1s, 15.4s, 2m, 1h".to_owned()),
    };
    let value: f64 = digits.parse().map_err(|_| "write a number before the unit: 250ms, 15.4s".to_owned())?;
    between(value * unit, 0.0, 86_400.0, "0s to 24h")
}

/// The same, and not zero.
pub(super) fn some_seconds(text: &str) -> Result<f64, String> {
    let value = seconds(text)?;
    if value >= 0.001 { Ok(value) } else { Err("write at least 1ms".to_owned()) }
}

/// Things per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let text = text.strip_suffix("/s").unwrap_or(text);
    let value: f64 = text.parse().map_err(|_| "write requests per second, such as 136.28".to_owned())?;
    between(value, 0.001, 1e6, "0.001 to 1000000 requests/s")
}

/// A share, from `0.45%` or `0.0045`.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let (digits, unit) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits.trim_end(), 0.01));
    let value: f64 = digits.parse().map_err(|_| "write a share such as 0.0045 or 0.45%".to_owned())?;
    between(value * unit, 0.0, 1.0, "0 to 1, or 0% to 100%")
}

fn between(value: f64, least: f64, most: f64, range: &str) -> Result<f64, String> {
    // Not a number lies nowhere.
    if (least..=most).contains(&value) { Ok(value) } else { Err(format!("write {range}")) }
}

/// Four digits that count.
pub(super) fn figure(value: f64) -> String {
    digits(value, 4)
}

/// So many digits that count.
pub(super) fn digits(value: f64, most: i32) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if value.abs() < 1e-6 {
        return format!("{value:.1e}");
    }
    let before = value.abs().log10().floor() as i32 + 1;
    let digits = (most - before).clamp(0, 9) as usize;
    format!("{value:.digits$}")
}

/// A number as it was given, without what the machine's own way of counting adds.
pub(super) fn given(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The same for a time.
pub(super) fn given_time(seconds: f64) -> String {
    if seconds < 1.0 { format!("{} ms", given(1_000.0 * seconds)) } else { format!("{} s", given(seconds)) }
}

/// A time in the unit that fits it.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".to_owned(),
        s if s < 1.0 => format!("{} ms", figure(s * 1000.0)),
        s if s < 600.0 => format!("{} s", figure(s)),
        s => format!("{} min", figure(s / 60.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_needs_a_number_and_a_unit() {
        for (text, value) in [("250ms", 0.25), ("1s", 1.0), ("15.4s", 15.4), ("2m", 120.0), ("1h", 3600.0), ("0s", 0.0)]
        {
            assert_eq!(seconds(text), Ok(value), "{text}");
        }
        for text in ["", "1", "s", "1 s", "-1s", "nans", "infs", "1day", "25h", "1e9s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert!(some_seconds("0s").is_err() && some_seconds("0.5ms").is_err() && some_seconds("1ms").is_ok());
    }

    #[test]
    fn a_share_is_written_in_two_ways() {
        assert_eq!(share("0.5"), Ok(0.5));
        assert_eq!(share("50%"), Ok(0.5));
        for text in ["", "%", "101%", "1.1", "-1%", "nan"] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_may_carry_its_unit() {
        assert_eq!(rate("136.28/s"), Ok(136.28));
        for text in ["0", "-1", "nan", "inf", "10/min", "1e7"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn figures_have_four_digits_and_times_a_unit() {
        let said = [0.0, 0.112_786, 156.437, 9.612_85, 1_650.2, 123_456.0, 2e-9].map(figure);
        assert_eq!(said, ["0", "0.1128", "156.4", "9.613", "1650", "123456", "2.0e-9"]);
        assert_eq!(
            (digits(0.012_345, 2), given(132.644_999_999_99), given(1.0)),
            ("0.012".into(), "132.645".into(), "1".into())
        );
        assert_eq!([0.091, 15.4].map(given_time), ["91 ms", "15.4 s"]);
        assert_eq!([0.0, 0.0125, 17.77, 900.0].map(time), ["0 s", "12.50 ms", "17.77 s", "15.00 min"]);
    }
}

//! Owns how people write a length of time: a whole number and its unit.
//! Must never know: what lasts so long.

use std::time::Duration;

/// `90s`, `15m`, `1h`, `7d`, also `250ms`; `None` for anything else.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().ok()?;
    let unit_ms = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit_ms).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_is_a_whole_number_and_a_unit() {
        let ms = |text| parse(text).map(|span| span.as_millis());
        assert_eq!([ms("250ms"), ms("90s"), ms("15m")], [Some(250), Some(90_000), Some(900_000)]);
        assert_eq!([ms("1h"), ms("7d"), ms("0s")], [Some(3_600_000), Some(604_800_000), Some(0)]);
        for wrong in ["", "s", "1", "-1s", "+1s", "1.5h", "1 h", "1H", "1w", "18446744073709551615d", "1sé", "é"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in any::<String>()) {
            let _ = parse(&text);
        }
    }
}

//! Owns what is true of any text that people will read: how it is shortened, which characters it may not hold,
//! and how a wrong word is answered with the right one.
//! Must never know: what the text is about.

use std::borrow::Cow;

use unicode_segmentation::UnicodeSegmentation;

/// What stands where text was cut off; three bytes.
const ELLIPSIS: &str = "…";

/// Starts a stretch that is read in its own direction, and leaves that of the text around it alone
/// (Unicode Bidirectional Algorithm, FIRST STRONG ISOLATE).
const ISOLATE: char = '\u{2068}';
/// Ends it (POP DIRECTIONAL ISOLATE); three bytes.
const END_ISOLATE: &str = "\u{2069}";

/// Cuts a text to at most `max_bytes` bytes, ellipsis included, never inside a grapheme: a flag, a family emoji or a
/// letter with its marks is kept whole or dropped whole. A stretch of its own direction that the cut falls into is
/// ended, and no mark of direction is left hanging before the ellipsis. Below three bytes nothing is left.
#[must_use]
pub fn shorten(text: &str, max_bytes: usize) -> Cow<'_, str> {
    if text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    let Some(room) = max_bytes.checked_sub(ELLIPSIS.len()) else {
        return Cow::Borrowed("");
    };
    let (mut open, mut kept) = (0_usize, (0, 0));
    for (at, grapheme) in text.grapheme_indices(true).take_while(|(at, _)| *at <= room) {
        let end = at + grapheme.len();
        match grapheme.chars().next() {
            Some('\u{2066}'..='\u{2068}') => open += 1,
            Some('\u{2069}') => open = open.saturating_sub(1),
            Some('\u{200e}' | '\u{200f}' | '\u{61c}') => {}
            _ if grapheme.trim().is_empty() => {}
            _ if end + open * END_ISOLATE.len() <= room => kept = (end, open),
            _ => break,
        }
    }
    let (end, open) = kept;
    Cow::Owned(format!("{}{}{ELLIPSIS}", &text[..end], END_ISOLATE.repeat(open)))
}

/// Whether a locale is written from right to left: by its script where it names one, else by its language.
#[must_use]
pub fn is_right_to_left(locale: &str) -> bool {
    const LANGUAGES: [&str; 15] =
        ["ar", "arc", "ckb", "dv", "fa", "he", "iw", "ji", "nqo", "ps", "sd", "syr", "ug", "ur", "yi"];
    const SCRIPTS: [&str; 7] = ["adlm", "arab", "hebr", "nkoo", "rohg", "syrc", "thaa"];
    let mut parts = locale.split('-').map(str::to_ascii_lowercase);
    let language = parts.next().unwrap_or_default();
    // A script is the only part of four letters (RFC 5646, 2.1).
    match parts.find(|part| part.len() == 4 && part.bytes().all(|b| b.is_ascii_alphabetic())) {
        Some(script) => SCRIPTS.contains(&script.as_str()),
        None => LANGUAGES.contains(&language.as_str()),
    }
}

/// A value as it stands in a text that is written from left to right: one that holds letters of the other direction is
/// isolated. Without that an Arabic name turns the whole text around where it comes first, and draws the minute behind
/// it to its other side.
#[must_use]
pub fn isolated(value: &str) -> Cow<'_, str> {
    if value.chars().any(runs_right_to_left) {
        return Cow::Owned(format!("{ISOLATE}{value}{END_ISOLATE}"));
    }
    Cow::Borrowed(value)
}

/// The blocks of scripts written from right to left, and the two marks that count as one of their letters.
const fn runs_right_to_left(c: char) -> bool {
    matches!(c, '\u{590}'..='\u{8ff}' | '\u{200f}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}'
        | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
}

/// Whether a character must not stand in a shown text: controls, line and paragraph separators, and the marks that
/// turn the reading direction of what follows. Joiners stay allowed: Persian and family emoji need them.
#[must_use]
pub fn is_unshowable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text with what cannot be shown escaped, and all else as it is.
#[must_use]
pub fn showable(raw: String) -> String {
    if !raw.contains(is_unshowable) {
        return raw;
    }
    let mut text = String::with_capacity(raw.len() + 8);
    for c in raw.chars() {
        if is_unshowable(c) { text.extend(c.escape_default()) } else { text.push(c) }
    }
    text
}

/// A caller's text as an error may show it: quoted, escaped, short.
#[must_use]
pub fn quote(raw: &str) -> String {
    format!("{:?}", shorten(raw, 48))
}

/// The candidate that differs least from `word`, case aside, when it is near enough to be what was meant: at most two
/// letters, one in words under five.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    let word = word.to_lowercase();
    let limit = if word.chars().count() < 5 { 1 } else { 2 };
    candidates.map(|c| (distance(&word, c), c)).filter(|(d, _)| *d <= limit).min().map(|(_, c)| c)
}

/// Edits between two words: insertions, deletions, replacements and swapped neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, j) in (0..=a.len()).flat_map(|i| (0..=b.len()).map(move |j| (i, j))) {
        rows[i][j] = if i == 0 || j == 0 {
            i + j
        } else {
            let same = usize::from(a[i - 1] != b[j - 1]);
            let plain = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + same);
            let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if swapped { plain.min(rows[i - 2][j - 2] + 1) } else { plain }
        };
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_fits_is_not_touched() {
        assert!(matches!(shorten("Saka", 4), Cow::Borrowed("Saka")));
        assert_eq!(shorten("", 0), "");
    }

    #[test]
    fn what_cannot_be_shown_is_escaped_and_nothing_else() {
        assert_eq!(showable("/fields/m\nute".to_owned()), "/fields/m\\nute");
        assert_eq!(showable("\u{1b}[31m\u{202e}x".to_owned()), "\\u{1b}[31m\\u{202e}x");
        assert_eq!(showable("گل\u{200c}زن \"é\"".to_owned()), "گل\u{200c}زن \"é\"");
    }

    #[test]
    fn a_grapheme_is_kept_whole_or_dropped_whole() {
        let family = "👨‍👩‍👧‍👦"; // 25 bytes in seven code points
        let flag = "🏴󠁧󠁢󠁥󠁮󠁧󠁿"; // 28 bytes, England
        for (text, max, want) in [
            ("Arsenal", 6, "Ars…".to_owned()),
            (&format!("a{family}b"), 26, "a…".to_owned()),
            (&format!("a{family}bcde"), 29, format!("a{family}…")),
            (&format!("{flag}{flag}"), 55, format!("{flag}…")),
            ("🇧🇷🇹🇷🇪🇸", 12, "🇧🇷…".to_owned()),
            ("得点：サカ選手", 10, "得点…".to_owned()),
            ("e\u{301}e\u{301}e\u{301}", 7, "e\u{301}…".to_owned()),
            ("هدف سجّله ساكا", 9, "هدف…".to_owned()),
            ("سجّل", 7, "س…".to_owned()),
            ("Arsenal   ahead", 11, "Arsenal…".to_owned()),
        ] {
            assert_eq!(shorten(text, max), want, "{text} to {max}");
        }
    }

    #[test]
    fn a_cut_leaves_no_stretch_of_direction_open_and_no_mark_hanging() {
        let name = "\u{2068}ساكا\u{2069}";
        for (text, max, want) in [
            (format!("{name} scores twice"), 22, format!("{name} scor…")),
            (format!("By {name} and more"), 18, "By \u{2068}ساك\u{2069}…".to_owned()),
            (format!("By {name}!"), 17, "By \u{2068}سا\u{2069}…".to_owned()),
            (format!("By {name}!!!"), 13, "By…".to_owned()),
            (format!("By {name}!!!"), 9, "By…".to_owned()),
            ("ab\u{200f}\u{200e} cd".to_owned(), 9, "ab…".to_owned()),
            ("\u{2066}\u{2067}abcdefghijk".to_owned(), 16, "\u{2066}\u{2067}a\u{2069}\u{2069}…".to_owned()),
        ] {
            assert_eq!(shorten(&text, max), want, "{text:?} to {max}");
        }
    }

    #[test]
    fn the_direction_of_a_locale_is_that_of_its_script() {
        for locale in ["ar", "AR-eg", "fa", "he-IL", "ur-PK", "az-Arab-IR", "pa-arab"] {
            assert!(is_right_to_left(locale), "{locale}");
        }
        for locale in ["en", "tr", "pt-BR", "ar-Latn", "arn", "zh-Hant-TW", "es-1994", ""] {
            assert!(!is_right_to_left(locale), "{locale}");
        }
    }

    #[test]
    fn only_what_runs_from_right_to_left_is_isolated() {
        for value in ["Saka", "2-1", "得点", "Ødegaard", "⚽", ""] {
            assert!(matches!(isolated(value), Cow::Borrowed(same) if same == value), "{value}");
        }
        for value in ["ساكا", "Saka ساكا", "שחקן", "ﺳﺎﻛﺎ"] {
            assert_eq!(isolated(value), format!("\u{2068}{value}\u{2069}"));
        }
    }

    #[test]
    fn without_room_for_the_ellipsis_nothing_is_left() {
        assert_eq!(shorten("abc", 2), "");
        assert_eq!(shorten("abcd", 3), "…");
    }

    #[test]
    fn the_word_that_was_meant_is_found() {
        let known = ["goal", "own_goal", "corner", "red_card"];
        for (wrong, right) in [("gaol", Some("goal")), ("Goal", Some("goal")), ("redcard", Some("red_card"))] {
            assert_eq!(nearest(wrong, known.into_iter()), right);
        }
        assert_eq!(nearest("touchdown", known.into_iter()), None);
        assert_eq!(nearest(&"x".repeat(10_000), known.into_iter()), None);
    }

    #[test]
    fn a_quoted_text_cannot_turn_the_line_or_fill_it() {
        assert_eq!(quote("a\u{202e}b\n"), "\"a\\u{202e}b\\n\"");
        assert!(quote(&"x".repeat(9_999)).len() < 60);
    }

    proptest! {
        #[test]
        fn shortening_leaves_every_stretch_closed(text in "[\u{2066}\u{2067}\u{2068}\u{2069}\u{200f} aسe\u{301}👨]{0,40}", max in 0usize..80) {
            let short = shorten(&text, max);
            prop_assert!(short.len() <= max);
            if text.len() > max && max >= ELLIPSIS.len() {
                let mut open = 0_usize;
                for c in short.chars() {
                    match c {
                        '\u{2066}'..='\u{2068}' => open += 1,
                        '\u{2069}' => open = open.saturating_sub(1),
                        _ => {}
                    }
                }
                prop_assert!(open == 0, "{:?} of {:?}", short, text);
                let before = short.trim_end_matches('…');
                prop_assert!(!before.ends_with(['\u{200f}', '\u{2066}', '\u{2067}', '\u{2068}', ' ']), "{:?}", short);
            }
        }

        #[test]
        fn shortening_keeps_the_bound_and_a_prefix_of_whole_graphemes(text in "\\PC{0,40}|[👨\u{200d}👩🇧🇷e\u{301}س\u{651} ]{0,30}", max in 0usize..80) {
            let short = shorten(&text, max);
            prop_assert!(short.len() <= max);
            if text.len() > max && max >= ELLIPSIS.len() {
                let kept = short.strip_suffix(ELLIPSIS).unwrap();
                let ends = || text.grapheme_indices(true).map(|(at, _)| at);
                prop_assert!(ends().any(|end| text[..end].trim_end() == kept), "{} is cut inside a grapheme", kept);
                let fits = ends().filter(|end| *end <= max - ELLIPSIS.len()).map(|end| text[..end].trim_end().len());
                prop_assert_eq!(fits.max(), Some(kept.len()), "not the longest that fits");
            }
        }
    }
}

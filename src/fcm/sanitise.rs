//! Owns the cleaning of provider text before anybody sees it.
//! Must never know: where the text came from.
//!
//! In this order: strip what would not show or would turn the line around and normalise, so that nothing hides from the
//! next step; redact; and only then cut, since a cut secret is still a secret.

use unicode_normalization::UnicodeNormalization;

/// Longest text kept, bytes.
pub const MAX_TEXT_BYTES: usize = 256;

/// A run of letters, digits, `-` and `_` this long may be a device token, a key or a hash.
/// (The shortest known secret-like value, a Firebase installation id, has 22 characters.)
const OPAQUE_AT: usize = 20;

/// Input beyond this many bytes is not looked at: far more than is kept, and cheap to redact.
const MAX_INPUT_BYTES: usize = 8 * 1024;

/// Makes provider text safe to log, store and show. At most [`MAX_TEXT_BYTES`] bytes. Cleaning twice changes nothing.
#[must_use]
pub fn clean(raw: &str) -> String {
    let shown: String = looked_at(raw).chars().filter_map(visible).nfkc().filter_map(visible).collect();
    let words: Vec<String> = shown.split_whitespace().map(redact).collect();
    cut(&words.join(" "), MAX_TEXT_BYTES).trim_end().to_owned()
}

/// Whole words only: the first half of a secret might not look like one.
fn looked_at(raw: &str) -> &str {
    if raw.len() <= MAX_INPUT_BYTES {
        return raw;
    }
    let head = cut(raw, MAX_INPUT_BYTES);
    &head[..head.rfind(char::is_whitespace).unwrap_or(0)]
}

/// The longest prefix of at most `max` bytes that ends at a character.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

fn visible(c: char) -> Option<char> {
    match c {
        _ if c.is_whitespace() => Some(' '),
        _ if c.is_control() || unseen(c) => None,
        _ => Some(c),
    }
}

/// Bidirectional, zero-width, tag, variation and private characters, and the replacement character.
fn unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{e000}'..='\u{f8ff}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffd}' | '\u{e0000}'..='\u{10ffff}')
}

/// Redacts one word, keeping quotes and brackets around what is inside them.
fn redact(word: &str) -> String {
    word.split_inclusive(is_fence).map(redact_piece).collect()
}

const fn is_fence(c: char) -> bool {
    matches!(c, '"' | '\'' | '`' | '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | ',' | ';' | '|')
}

fn redact_piece(piece: &str) -> String {
    let inner = piece.trim_end_matches(is_fence);
    let fence = &piece[inner.len()..];
    let kept = match inner {
        _ if inner.contains("://") || inner.starts_with("www.") => "*url*",
        _ if is_path(inner) => "*path*",
        _ if inner.split(|c: char| !is_opaque_char(c)).any(is_opaque) => "*redacted*",
        _ => inner,
    };
    format!("{kept}{fence}")
}

/// `/etc/x`, `~/x`, `./x`, `C:\x`, `a/b/c`, `a\b`; not `and/or`.
fn is_path(piece: &str) -> bool {
    let rooted = piece.len() > 1 && ["/", "~/", "./", "../"].iter().any(|root| piece.starts_with(root));
    rooted || piece.contains('\\') || piece.matches('/').count() >= 2
}

const fn is_opaque_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

/// Long, and not merely a word, a `CONSTANT_NAME` or a `NameOfManyWords`.
fn is_opaque(run: &str) -> bool {
    let has = |test: fn(&u8) -> bool| run.bytes().any(|b| test(&b));
    let mixed = has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase);
    run.len() >= OPAQUE_AT && (has(u8::is_ascii_digit) || (mixed && !is_camel(run)))
}

/// Letters only, every word a capital and then small letters, four letters a word on average: the shape of APNs'
/// reasons (`InvalidProviderToken`). By chance one random string of 22 in 150,000 has it, and of 64 practically none.
fn is_camel(run: &str) -> bool {
    let bytes = run.as_bytes();
    let small_follows = bytes.windows(2).all(|pair| !pair[0].is_ascii_uppercase() || pair[1].is_ascii_lowercase());
    let ends = bytes.first().is_some_and(u8::is_ascii_uppercase) && bytes.last().is_some_and(u8::is_ascii_lowercase);
    let words = bytes.iter().filter(|b| b.is_ascii_uppercase()).count();
    bytes.iter().all(u8::is_ascii_alphabetic) && small_follows && ends && words * 4 <= run.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKEN: &str = "dQw4w9WgXcQ_abcDEFghi1:APA91bHPRgkF3JUikC4ENAHEeMrd41Zxv3hVZjC9KtT8OvPVGJ-hQMRKRrZuJAEcl7B338qju59zJMjw2DELjzEvxwYv7hH5Ynpc1ODQ0aT4U4OFEeco8ohsN5PjL1iC2dNtk2BAokeMCg2ZXKqpc8FXKmhX94kIxQ";

    #[test]
    fn secrets_and_places_are_redacted_and_words_are_kept() {
        for (raw, want) in [
            ("Requested entity was not found.", "Requested entity was not found."),
            (
                "THIRD_PARTY_AUTH_ERROR and registration-token-not-registered",
                "THIRD_PARTY_AUTH_ERROR and registration-token-not-registered",
            ),
            (
                "Permission 'cloudmessaging.messages.create' denied",
                "Permission 'cloudmessaging.messages.create' denied",
            ),
            (
                "APNs 403 InvalidProviderToken, BadEnvironmentKeyInToken",
                "APNs 403 InvalidProviderToken, BadEnvironmentKeyInToken",
            ),
            ("aPnsTokenOfManyWordsInARow QwErTyUiOpAsDfGhJkLz", "*redacted* *redacted*"),
            ("see https://console.google.com/a?b=c for more", "see *url* for more"),
            ("(www.example.org)", "(*url*)"),
            ("open /etc/passwd, then C:\\Users\\x", "open *path*, then *path*"),
            ("denied on projects/p/messages/1", "denied on *path*"),
            ("and/or application/json", "and/or application/json"),
            ("token=\"ya29.a0AfH6SMBx1y2z3w4v5u6t7s8r9q\"", "token=\"*redacted*\""),
            ("id 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "id *redacted*"),
            ("fid cAbCdEfGhIjKlMnOpQrStU", "fid *redacted*"),
            ("project 123456789012 used", "project 123456789012 used"),
        ] {
            assert_eq!(clean(raw), want, "{raw:?}");
        }
    }

    #[test]
    fn a_device_token_does_not_get_through_in_any_disguise() {
        let spaced: String = TOKEN.chars().flat_map(|c| [c, '\u{200b}']).collect();
        let wide: String = TOKEN.chars().map(|c| char::from_u32(c as u32 + 0xfee0).unwrap()).collect();
        let turned = format!("\u{202e}{TOKEN}\u{202c}");
        let hidden = TOKEN.replace(':', ":\u{ad}\u{0}\u{7f}\u{e0041}");
        let late = format!("{} {TOKEN}", "x".repeat(250));
        let very_late = format!("{} {TOKEN}", "y".repeat(MAX_INPUT_BYTES - 10));
        for raw in
            [TOKEN.to_owned(), spaced, wide, turned, hidden, late, very_late, format!("{{\"token\":\"{TOKEN}\"}}")]
        {
            let shown = clean(&raw);
            for part in [&TOKEN[..8], &TOKEN[23..31], &TOKEN[60..68]] {
                assert!(!shown.contains(part), "{shown}");
            }
        }
    }

    #[test]
    fn what_does_not_show_is_stripped_and_a_line_stays_a_line() {
        assert_eq!(clean("a\u{1b}[31mb\r\n\tc\u{2028}d\u{2066}e\u{feff}"), "a[31mb c d e".replace("d e", "de"));
        assert_eq!(clean("  \u{3000} x \u{a0} "), "x");
        assert_eq!(clean("\u{202e}\u{0}\u{200b}"), "");
    }

    #[test]
    fn it_is_cut_last_and_at_a_character() {
        assert_eq!(clean(&"abc ".repeat(200)), "abc ".repeat(64).trim_end());
        let wide = "é".repeat(300);
        assert_eq!(clean(&wide), "é".repeat(128));
    }

    /// Characters that do not show, or show as another.
    const HIDERS: &[char] = &[
        '\u{0}',
        '\u{7f}',
        '\u{ad}',
        '\u{200b}',
        '\u{200d}',
        '\u{202e}',
        '\u{2066}',
        '\u{2060}',
        '\u{fe0f}',
        '\u{feff}',
        '\u{e0041}',
    ];

    proptest! {
        #[test]
        fn any_text_becomes_short_plain_and_stays_so(raw in any::<String>()) {
            let once = clean(&raw);
            prop_assert!(once.len() <= MAX_TEXT_BYTES);
            prop_assert!(!once.chars().any(|c| c.is_control() || unseen(c)));
            prop_assert_eq!(clean(&once), once);
        }

        /// Law 14 as a whole: whatever hides in a device token or stands around it, and wherever the cut falls, no eight
        /// of its characters in a row are left. Cut first and half a token survives; strip last and it hides.
        #[test]
        fn no_piece_of_a_device_token_survives_wherever_it_stands(
            before in "([a-z]{1,9} ){0,60}", quote in "[\"'(\\[{<=:/]{0,2}", after in "[\"').,;\\]]{0,3}( [a-z]{1,9}){0,9}",
            hidden in prop::collection::vec((0_usize..TOKEN.len(), prop::sample::select(HIDERS)), 0..40),
        ) {
            let mut token: Vec<char> = TOKEN.chars().collect();
            for (at, hider) in hidden {
                token.insert(at.min(token.len()), hider);
            }
            let raw = [before.as_str(), &quote, &token.into_iter().collect::<String>(), &after].concat();
            let shown = clean(&raw);
            prop_assert!(shown.len() <= MAX_TEXT_BYTES);
            for start in 0..TOKEN.len() - 8 {
                prop_assert!(!shown.contains(&TOKEN[start..start + 8]), "{} of {:?}", shown, raw);
            }
        }

        #[test]
        fn no_mixed_run_of_twenty_survives(before in "[a-z ]{0,20}", run in "[A-Za-z0-9_-]{20,60}", after in "[ .,)]{0,3}") {
            prop_assume!(is_opaque(&run));
            let shown = clean(&[before.as_str(), &run, &after].concat());
            prop_assert!(!shown.contains(&run), "{}", shown);
        }
    }
}

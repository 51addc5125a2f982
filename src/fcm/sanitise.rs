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

/// Long, and not merely one long word or CONSTANT_NAME: those have no digit and one case.
fn is_opaque(run: &str) -> bool {
    let has = |test: fn(&u8) -> bool| run.bytes().any(|b| test(&b));
    let mixed = has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase);
    run.len() >= OPAQUE_AT && (mixed || has(u8::is_ascii_digit))
}

//! Owns how the part behind the `?` is read.
//! Must never know: which parameters a call has.

use axum::extract::Query;

use super::problem::Refusal;

/// Parameters as they were given.
pub(super) type Given = Query<Vec<(String, String)>>;

/// The parameters a call knows, each at most once. An unknown one is refused: it is a misspelling, and answering as if
/// it were not there would look like an answer to it.
pub(super) fn read<const N: usize>(given: Given, known: [&str; N]) -> Result<[Option<String>; N], Refusal> {
    let mut found = [const { None }; N];
    for (name, value) in given.0 {
        let Some(at) = known.iter().position(|k| *k == name) else {
            let name: String = name.chars().take(100).collect();
            return Err(Refusal::field(&name, format!("no such parameter; there are {}", known.join(", "))));
        };
        if found[at].replace(value).is_some() {
            return Err(Refusal::field(known[at], "given twice"));
        }
    }
    Ok(found)
}

/// A whole number of at most `most`.
pub(super) fn number(
    name: &str,
    value: Option<String>,
    range: std::ops::RangeInclusive<u32>,
) -> Result<Option<u32>, Refusal> {
    let Some(value) = value else { return Ok(None) };
    let number = value.parse().ok().filter(|n| range.contains(n));
    let wanted = format!("must be a whole number from {} to {}", range.start(), range.end());
    number.map(Some).ok_or_else(|| Refusal::field(name, wanted))
}

/// `true` or `false`; absent is false.
pub(super) fn flag(name: &str, value: Option<String>) -> Result<bool, Refusal> {
    let known = |word: &str| word.parse::<bool>().ok();
    Ok(one_of(name, value, &["true", "false"], known)?.unwrap_or(false))
}

/// One of a few words.
pub(super) fn one_of<T>(
    name: &str,
    value: Option<String>,
    words: &[&str],
    known: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Refusal> {
    let Some(value) = value else { return Ok(None) };
    let refused = || Refusal::field(name, format!("must be one of {}", words.join(", ")));
    known(&value).map(Some).ok_or_else(refused)
}

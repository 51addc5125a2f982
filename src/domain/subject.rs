//! Owns what may be followed, as text: `match:4711`, `team:ars`, `player:7`, `competition:pl`.
//! Must never know: who follows what.

use super::ids::is_invisible;

/// What can stand before the colon.
pub const SUBJECT_KINDS: [&str; 4] = ["match", "team", "player", "competition"];

/// Longest part behind the colon, in bytes.
pub const MAX_SUBJECT_ID_BYTES: usize = 96;

/// Why a subject was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// No known kind and colon in front.
    #[error("must be one of match, team, player, competition, then a colon and an id, like team:ars")]
    Kind,
    /// Nothing behind the colon.
    #[error("has no id behind the colon; write it like team:ars")]
    Empty,
    /// Longer than [`MAX_SUBJECT_ID_BYTES`].
    #[error("has {0} bytes behind the colon, at most 96 are kept")]
    TooLong(usize),
    /// A space, control or invisible character.
    #[error("must not contain spaces, control or invisible characters")]
    BadCharacter,
}

/// Checks one subject. Nothing is trimmed or folded: two spellings are two subjects.
///
/// # Errors
/// [`SubjectError`] says which rule the text breaks.
pub fn check(raw: &str) -> Result<(), SubjectError> {
    let (kind, id) = raw.split_once(':').ok_or(SubjectError::Kind)?;
    if !SUBJECT_KINDS.contains(&kind) {
        return Err(SubjectError::Kind);
    }
    if id.is_empty() {
        return Err(SubjectError::Empty);
    }
    if id.len() > MAX_SUBJECT_ID_BYTES {
        return Err(SubjectError::TooLong(id.len()));
    }
    if id.chars().any(|c| c.is_whitespace() || c.is_control() || is_invisible(c)) {
        return Err(SubjectError::BadCharacter);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_a_known_kind_and_a_visible_id() {
        for good in ["match:4711", "team:ars", "player:7", "competition:pl", "team:münchen", "match:a:b"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("", SubjectError::Kind),
            ("4711", SubjectError::Kind),
            ("Team:ars", SubjectError::Kind),
            (" team:ars", SubjectError::Kind),
            ("stadium:1", SubjectError::Kind),
            ("team:", SubjectError::Empty),
            ("team:a b", SubjectError::BadCharacter),
            ("team:a\0", SubjectError::BadCharacter),
            ("team:a\u{202e}b", SubjectError::BadCharacter),
        ] {
            assert_eq!(check(bad), Err(why), "{bad:?}");
        }
        assert_eq!(check(&format!("team:{}", "x".repeat(96))), Ok(()));
        assert_eq!(check(&format!("team:{}", "x".repeat(97))), Err(SubjectError::TooLong(97)));
    }
}

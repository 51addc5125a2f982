//! Owns what a check comes to: its grade, what was found, the fix; and what all of them come to.
//! Must never know: any single check.

use std::fmt;

/// What kind of trouble a failure is: it decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Something is wrong with what is there.
    Other,
    /// Something this depends on cannot be reached or does not work.
    Unavailable,
    /// A setting is wrong: to be mended first.
    Config,
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// Nothing to do.
    Ok,
    /// It serves, and somebody should look at it; or it could not be checked.
    Warn,
    /// It does not serve, or not as it should.
    Fail(Trouble),
}

impl Grade {
    /// `ok`, `warn` or `fail`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail(_) => "fail",
        }
    }
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its name, which is stable.
    pub check: &'static str,
    /// How it went.
    pub grade: Grade,
    /// What was found, numbers with their units; nothing secret.
    pub found: String,
    /// What to do; empty when there is nothing to do.
    pub fix: String,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, grade: Grade::Ok, found: found.into(), fix: String::new() }
    }

    pub(super) fn warn(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, grade: Grade::Warn, found: found.into(), fix: fix.into() }
    }

    pub(super) fn fail(
        check: &'static str,
        trouble: Trouble,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { check, grade: Grade::Fail(trouble), found: found.into(), fix: fix.into() }
    }

    /// A check that could not be made: no failure of its own, and never silent.
    #[must_use]
    pub fn unchecked(check: &'static str, why: impl fmt::Display) -> Self {
        Self::warn(check, format!("not checked: {why}"), "")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<4}  {:<13}  {}", self.grade.as_str(), self.check, self.found)?;
        if self.fix.is_empty() { Ok(()) } else { write!(f, ". Fix: {}", self.fix) }
    }
}

/// What all checks come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    /// Names of those that failed, each once.
    pub failed: Vec<&'static str>,
    /// How many warn.
    pub warned: usize,
    /// The trouble to mend first; none = nothing failed.
    pub trouble: Option<Trouble>,
}

/// Draws the conclusion.
#[must_use]
pub fn conclude(findings: &[Finding]) -> Conclusion {
    let mut conclusion = Conclusion { failed: Vec::new(), warned: 0, trouble: None };
    for finding in findings {
        match finding.grade {
            Grade::Ok => {}
            Grade::Warn => conclusion.warned += 1,
            Grade::Fail(trouble) => {
                conclusion.trouble = conclusion.trouble.max(Some(trouble));
                if !conclusion.failed.contains(&finding.check) {
                    conclusion.failed.push(finding.check);
                }
            }
        }
    }
    conclusion
}

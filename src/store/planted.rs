//! Owns the exchange of a part of a statement for a deliberate fault, for `tests/mutants`.
//! Must never know: which statement it is, or what the fault breaks.

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// The statement as it is. With the fault planted, `right` in it reads `wrong`; a build that serves never has one.
#[inline]
pub(super) fn unless(planted: bool, sql: &'static str, right: &str, wrong: &str) -> SqlStr {
    if planted { AssertSqlSafe(sql.replace(right, wrong)).into_sql_str() } else { sql.into_sql_str() }
}

//! Owns which pool a call is served from, by its path alone: whoever is not known yet cannot choose.
//! Must never know: who calls.

use crate::door::Pool;

/// The pool of a path. What is served nowhere is refused from the readings' pool.
pub(super) fn pool(path: &str) -> Pool {
    let fanout = |call: &str| {
        let id = path.strip_prefix("/v1/fanouts/").and_then(|rest| rest.strip_suffix(call));
        id.is_some_and(|id| !id.contains('/'))
    };
    match path {
        "/v1/events" => Pool::Interactive,
        "/v1/devices/import" | "/v1/devices/export" | "/v1/sweeps" => Pool::Bulk,
        _ if fanout("/replay") || fanout("/resume") => Pool::Bulk,
        _ => Pool::Read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_looks_like_a_call_is_an_id() {
        assert_eq!(pool("/v1/fanouts/7/replay"), Pool::Bulk);
        // What becomes of a sweep is a reading like any other.
        for path in [
            "/v1/devices/replay",
            "/v1/devices/import/follows",
            "/v1/sweeps/7",
            "/v1/fanouts/7",
            "/",
            "/v1/events/",
            "/v1/fanouts/7/recipients/replay",
        ] {
            assert_eq!(pool(path), Pool::Read, "{path}");
        }
    }
}

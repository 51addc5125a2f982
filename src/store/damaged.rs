//! Owns what both databases do with rows this build cannot read: leave them alone, say so once, go on with the others.
//! Must never know: SQL, or what is wrong with them.

use super::StoreError;
use crate::domain::ids::{ChunkRef, FanoutId};

/// How long a chunk that does not parse is left alone. A newer build may read it.
pub(crate) const LEFT_ALONE_MS: i64 = 10_000;

/// A chunk with the epoch it is handed back under, and why it does not parse.
pub(crate) type DamagedChunk = ((ChunkRef, i32), StoreError);

/// Says that chunks were handed back.
pub(crate) fn warn_of_chunks(damaged: &[DamagedChunk]) {
    let Some(((chunk, _), error)) = damaged.first() else { return };
    tracing::warn!(target: "fanfare::store", fanout_id = %chunk.fanout, chunk = chunk.no, %error,
        damaged = damaged.len(), "a chunk that does not parse was handed back");
}

/// Says that fan-outs were passed over by `operation`.
pub(crate) fn warn_of_fanouts(operation: &'static str, damaged: &[(FanoutId, StoreError)]) {
    let Some((id, error)) = damaged.first() else { return };
    tracing::error!(target: "fanfare::store", operation, fanout_id = %id, %error, damaged = damaged.len(),
        "a fan-out that does not parse was passed over");
}

//! Owns the statements that claim chunks and hand them back.
//! Must never know: what their values mean.

statements! {
    // Claiming and releasing.
    OPEN_CHUNKS = "SELECT c.fanout_id, c.chunk_no, c.n, c.class, c.rank, c.epoch, c.done, c.maybe, c.unclean, i.keys
        FROM chunk c CROSS JOIN fanout f ON f.id = c.fanout_id
        CROSS JOIN chunk_ids i ON i.fanout_id = c.fanout_id AND i.chunk_no = c.chunk_no
        WHERE c.state = 0 AND (c.class, c.rank) < (?1, ?4) AND c.not_before_ms <= ?2 AND f.state <> 3
        AND (f.paused = 0 OR f.deadline_ms <= ?2)
        ORDER BY c.class, c.rank, c.fanout_id, c.chunk_no LIMIT ?3";
    OVERDUE_CHUNKS = "SELECT c.fanout_id, c.chunk_no, c.n, c.class, c.rank, c.epoch, c.done, c.maybe, c.unclean, i.keys
        FROM fanout f CROSS JOIN chunk c ON c.fanout_id = f.id
        CROSS JOIN chunk_ids i ON i.fanout_id = c.fanout_id AND i.chunk_no = c.chunk_no
        WHERE f.settled_ms IS NULL AND f.state <> 3 AND f.deadline_ms <= ?1
        AND c.state = 0 AND c.not_before_ms <= ?1 LIMIT ?2";
    OTHER_CHUNKS = "SELECT c.fanout_id, c.chunk_no, c.n, c.class, c.rank, c.epoch, c.done, c.maybe, c.unclean, i.keys
        FROM fanout f CROSS JOIN chunk c ON c.fanout_id = f.id
        CROSS JOIN chunk_ids i ON i.fanout_id = c.fanout_id AND i.chunk_no = c.chunk_no
        WHERE f.settled_ms IS NULL AND f.state <> 3 AND (f.paused = 0 OR f.deadline_ms <= ?1)
        AND NOT EXISTS (SELECT 1 FROM chunk o WHERE o.fanout_id = f.id AND o.state = 1 AND o.owner = ?3)
        AND c.state = 0 AND c.not_before_ms <= ?1 ORDER BY c.class, c.rank LIMIT ?2";
    FLOOR_CHUNK = "SELECT c.fanout_id, c.chunk_no, c.n, c.class, c.rank, c.epoch, c.done, c.maybe, c.unclean, i.keys
        FROM chunk c CROSS JOIN fanout f ON f.id = c.fanout_id
        CROSS JOIN chunk_ids i ON i.fanout_id = c.fanout_id AND i.chunk_no = c.chunk_no
        WHERE c.state = 0 AND c.class = (SELECT k.class FROM chunk k CROSS JOIN fanout g ON g.id = k.fanout_id
        WHERE k.state = 0 AND k.class > ?1 AND k.not_before_ms <= ?2 AND g.state <> 3
        AND (g.paused = 0 OR g.deadline_ms <= ?2) ORDER BY k.class DESC, k.rank DESC LIMIT 1)
        AND c.not_before_ms <= ?2 AND f.state <> 3 AND (f.paused = 0 OR f.deadline_ms <= ?2)
        ORDER BY c.class, c.rank, c.fanout_id, c.chunk_no LIMIT 1";
    STEP_CHUNKS = "SELECT c.fanout_id, c.chunk_no, c.n, c.class, c.rank, c.epoch, c.done, c.maybe, c.unclean, i.keys
        FROM chunk c JOIN chunk_ids i ON i.fanout_id = c.fanout_id AND i.chunk_no = c.chunk_no
        WHERE c.fanout_id = ?2 AND c.chunk_no >= ?3 AND c.chunk_no < ?4 AND c.state = 1 AND c.owner = ?1
        AND c.epoch = 1 ORDER BY c.chunk_no";
    OWNED_CHUNKS = "SELECT c.fanout_id, c.chunk_no, c.n, c.class, c.rank, c.epoch, c.done, c.maybe, c.unclean, i.keys
        FROM chunk c CROSS JOIN chunk_ids i ON i.fanout_id = c.fanout_id AND i.chunk_no = c.chunk_no
        WHERE c.state = 1 AND c.owner = ?1 ORDER BY c.class, c.rank, c.fanout_id, c.chunk_no";
    CLAIM = "UPDATE chunk SET state = 1, owner = ?3, epoch = epoch + 1 WHERE fanout_id = ?1 AND chunk_no = ?2";
    RECIPIENTS = "SELECT device_key, token, fid, platform, locale, version FROM device
        WHERE device_key IN (SELECT value FROM json_each(?1)) AND state = 0";
    RELEASE = "UPDATE chunk SET state = 0, owner = NULL, not_before_ms = ?5
        WHERE fanout_id = ?1 AND chunk_no = ?2 AND state = 1 AND owner = ?3 AND epoch = ?4";
    RECALL = "UPDATE chunk SET not_before_ms = 0 WHERE fanout_id = ?1 AND chunk_no = ?2 AND state = 0 AND epoch = ?3";
}

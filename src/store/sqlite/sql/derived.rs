//! Owns the statements about fan-outs that are derived from others: whom those reached, replays, pauses.
//! Must never know: what their values mean.

statements! {
    // What fan-outs are derived from. A family goes by the id of one of its members, which has no family of its own.
    KIN = "SELECT id FROM fanout WHERE id = (SELECT coalesce(family, id) FROM fanout WHERE id = ?1) AND id <> ?1
        UNION ALL SELECT id FROM fanout WHERE family = (SELECT coalesce(family, id) FROM fanout WHERE id = ?1)
        AND id <> ?1 ORDER BY 1";
    FREEZE_CHUNKS = "SELECT freeze_chunks FROM fanout WHERE id = ?1";
    FROZEN_CHUNKS = "SELECT c.chunk_no, c.n, c.state, c.unclean, c.done, c.ok, c.maybe, c.rest_outcome, i.keys
        FROM chunk c CROSS JOIN chunk_ids i ON i.fanout_id = c.fanout_id AND i.chunk_no = c.chunk_no
        WHERE c.fanout_id = ?1 AND c.chunk_no >= ?2 AND c.chunk_no < ?3 ORDER BY c.chunk_no";
    FAILURES_OF = "SELECT chunk_no, ordinal, outcome FROM failure
        WHERE fanout_id = ?1 AND chunk_no >= ?2 AND chunk_no < ?3";
    // For a comparison with another system's list.
    DEVICE_IDS = "SELECT device_key, id FROM device WHERE device_key IN (SELECT value FROM json_each(?1))
        UNION ALL SELECT device_key, id FROM former_device WHERE device_key IN (SELECT value FROM json_each(?1))";
    HOLDERS = "SELECT token, id FROM device WHERE token IN (SELECT value FROM json_each(?1))
        UNION ALL SELECT fid, id FROM device WHERE fid IN (SELECT value FROM json_each(?1))";

    LIVE_OF = "SELECT device_key FROM device WHERE device_key IN (SELECT value FROM json_each(?1)) AND state = 0";
    // Replays of the same message since, of whichever fan-out of the family: what an earlier one knew, its own recipients
    // were chosen by.
    REPLAYS_OF = "SELECT r.id FROM fanout p CROSS JOIN fanout r ON r.family = coalesce(p.family, p.id)
        WHERE p.id = ?1 AND r.event_id = p.event_id AND r.kind = 2 AND r.id > p.id ORDER BY r.id";

    REPLAY_NAMED = "SELECT id FROM fanout WHERE parent = ?1 AND kind = 2 AND request_id = ?2";
    REPLAYED = "SELECT state, settled_ms IS NOT NULL AS settled, superseded_by,
        (SELECT r.id FROM fanout r WHERE r.parent = f.id AND r.kind = 2 AND r.request_id = ?2) AS same,
        (SELECT max(r.id) FROM fanout r WHERE r.family = coalesce(f.family, f.id) AND r.event_id = f.event_id
        AND r.kind = 2 AND r.settled_ms IS NULL AND r.id <> f.id) AS running,
        EXISTS (SELECT 1 FROM chunk c WHERE c.fanout_id = f.id AND c.state IN (0, 1)) AS open
        FROM fanout f WHERE f.id = ?1";
    // Outcome 13 is `internal`.
    GIVE_UP = "UPDATE chunk SET state = 2, rest_outcome = 13, rest_cause = 0 WHERE fanout_id = ?1 AND state = 3";
    ADD_REPLAY = "INSERT INTO fanout (event_id, event_type, match_id, kind, parent, class, occurred_ms, accepted_ms,
        deadline_ms, freeze_owner, source, family, root_event, collapse_key, request_id, max_attempts)
        SELECT p.event_id, p.event_type, p.match_id, 2, p.id, p.class, p.occurred_ms, ?2, ?3, ?4, ?5,
        coalesce(p.family, p.id), p.root_event, p.collapse_key, ?6, ?7 FROM fanout p WHERE p.id = ?1 RETURNING id";
    PAUSE = "UPDATE fanout SET paused = ?2 WHERE id = ?1 AND paused = 0 AND settled_ms IS NULL AND state IN (0, 1, 4)
        AND max_attempts IS NOT NULL AND resumed = ?3";
    SPENT = "UPDATE fanout SET paused = 1 WHERE id IN (SELECT value FROM json_each(?1)) AND max_attempts IS NOT NULL
        AND paused = 0 AND settled_ms IS NULL AND state IN (0, 1, 4) AND (SELECT sum(p.counters ->> 'attempts')
        FROM fanout_part p WHERE p.fanout_id = fanout.id) >= max_attempts";
    PAUSED = "SELECT id, resumed FROM fanout WHERE id IN (SELECT value FROM json_each(?1)) AND paused <> 0
        AND settled_ms IS NULL";
    RESUME = "UPDATE fanout SET paused = 0, resumed = resumed + 1, max_attempts = max_attempts + ?2 WHERE id = ?1
        AND paused <> 0 AND settled_ms IS NULL AND state IN (0, 1, 4)";
}

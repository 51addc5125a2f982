//! Owns every statement SQLite is asked, by name. A test prepares each one on a migrated database.
//! Must never know: what its values mean.

macro_rules! statements {
    ($($name:ident = $sql:literal;)+) => {
        $(pub(super) const $name: &str = $sql;)+

        /// Every statement by name, for the test that prepares them all.
        pub const STATEMENTS: &[(&str, &str)] = &[$((stringify!($name), $name),)+];
    };
}

// Literal codes: fan-out state 0 freezing, 1 sending, 2 done, 3 cancelled, 4 set aside; chunk state 0 open, 1 owned,
// 2 closed, 3 set aside; device state 0 live, 1 tombstoned, 2 suspended. SQLite uses a partial index only when the
// statement repeats its condition as a literal.
statements! {
    APPLIED = "SELECT version, checksum FROM _sqlx_migrations ORDER BY version";

    // Instances.
    IS_MIGRATED = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'instance')";
    EXPIRE_LEASES = "UPDATE instance SET lease_until_ms = 0 WHERE lease_until_ms > 0";
    BEAT = "INSERT INTO instance (boot_id, started_ms, heartbeat_ms, lease_until_ms) VALUES (?1, ?2, ?2, ?3)
        ON CONFLICT (boot_id) DO UPDATE SET heartbeat_ms = excluded.heartbeat_ms,
        lease_until_ms = excluded.lease_until_ms";
    LIVE_INSTANCES = "SELECT count(*) FROM instance WHERE lease_until_ms > ?1";
    LOST_CHUNKS = "SELECT fanout_id, chunk_no, n, done, takeovers, mark, owner FROM chunk WHERE state = 1
        AND (owner IS NULL OR owner NOT IN (SELECT boot_id FROM instance WHERE lease_until_ms > ?1))";
    FREE_LOST = "UPDATE chunk SET state = ?3, owner = NULL, epoch = epoch + 1, unclean = 1,
        takeovers = ?4, mark = ?5 WHERE fanout_id = ?1 AND chunk_no = ?2";
    COUNT_INTERRUPTED = "UPDATE fanout SET interrupted = interrupted + 1 WHERE id = ?1";
    SET_FANOUT_ASIDE = "UPDATE fanout SET state = 4 WHERE id = ?1 AND state = 1";
    LEAVE = "DELETE FROM instance WHERE boot_id = ?1";
    LEAVE_CHUNKS = "UPDATE chunk SET state = 0, owner = NULL WHERE state = 1 AND owner = ?1";
    LEAVE_FREEZES = "UPDATE fanout SET freeze_owner = NULL WHERE settled_ms IS NULL AND state = 0
        AND freeze_owner = ?1";

    // Accepting and freezing.
    EVENT_SEEN = "SELECT content_hash, fanout_id FROM event WHERE event_id = ?1";
    ADD_FANOUT = "INSERT INTO fanout (event_id, event_type, match_id, class, occurred_ms, accepted_ms, deadline_ms,
        freeze_owner) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) RETURNING id";
    ADD_EVENT = "INSERT INTO event (event_id, content_hash, fanout_id, body, accepted_ms) VALUES (?1, ?2, ?3, ?4, ?5)";
    JOB = "SELECT f.id, f.class, f.accepted_ms, f.deadline_ms, e.body FROM fanout f
        JOIN event e ON e.event_id = f.event_id WHERE f.id = ?1";
    FREE_FREEZES = "SELECT id FROM fanout WHERE settled_ms IS NULL AND state = 0
        AND id NOT IN (SELECT value FROM json_each(?6)) AND (freeze_owner IS NULL
        OR freeze_owner NOT IN (SELECT boot_id FROM instance WHERE lease_until_ms > ?1)
        OR (freeze_owner = ?3 AND accepted_ms <= ?4 AND id NOT IN (SELECT value FROM json_each(?5))))
        ORDER BY class, id LIMIT ?2";
    TAKE_FREEZE = "UPDATE fanout SET freeze_owner = ?2, freeze_epoch = freeze_epoch + 1 WHERE id = ?1
        RETURNING freeze_epoch, freeze_cursor, freeze_chunks";
    FOLLOWER_PAGE = "SELECT device_key FROM follow WHERE subject = ?1 AND device_key > ?2 AND (kinds & ?3) <> 0
        ORDER BY device_key LIMIT ?4";
    FREEZE_STEP = "UPDATE fanout SET freeze_cursor = ?5, freeze_chunks = ?6,
        recipients = recipients + ?7, state = CASE WHEN NOT ?8 THEN 0
        WHEN EXISTS (SELECT 1 FROM chunk WHERE fanout_id = ?1 AND state = 3) THEN 4 ELSE 1 END
        WHERE id = ?1 AND state = 0 AND freeze_owner = ?2 AND freeze_epoch = ?3 AND freeze_cursor = ?4
        AND freeze_chunks = ?9 RETURNING class";
    STANDS = "SELECT EXISTS (SELECT 1 FROM fanout WHERE id = ?1 AND freeze_owner = ?2 AND freeze_epoch = ?3
        AND freeze_cursor = ?4 AND freeze_chunks = ?5 AND (state <> 0) = ?6 AND state <> 3)";
    ADD_CHUNK_IDS = "INSERT INTO chunk_ids (fanout_id, chunk_no, keys) VALUES (?1, ?2, ?3)";
    // ?6 is state and epoch at once: 1 = owned under epoch 1, 0 = open and never owned.
    ADD_CHUNK = "INSERT INTO chunk (fanout_id, chunk_no, n, class, rank, state, owner, epoch, done, ok, maybe)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?6, ?8, ?8, ?8)";

    // Claiming and releasing.
    OPEN_CHUNKS = "SELECT c.fanout_id, c.chunk_no, c.n, c.class, c.rank, c.epoch, c.done, c.maybe, c.unclean, i.keys
        FROM chunk c CROSS JOIN fanout f ON f.id = c.fanout_id
        CROSS JOIN chunk_ids i ON i.fanout_id = c.fanout_id AND i.chunk_no = c.chunk_no
        WHERE c.state = 0 AND c.class < ?1 AND c.not_before_ms <= ?2 AND f.state <> 3
        ORDER BY c.class, c.rank, c.fanout_id, c.chunk_no LIMIT ?3";
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

    // Cancelling: outcome 11 is `cancelled`.
    CANCEL = "UPDATE fanout SET state = 3, freeze_owner = CASE WHEN state = 0 THEN NULL ELSE freeze_owner END
        WHERE id = ?1 AND settled_ms IS NULL AND state <> 3";
    FANOUT_STATE = "SELECT state FROM fanout WHERE id = ?1";
    CLOSE_CANCELLED = "UPDATE chunk SET state = 2, owner = NULL, rest_outcome = 11, rest_cause = 0
        WHERE fanout_id = ?1 AND state IN (0, 3)";
    CANCELLED_IN_HAND = "SELECT DISTINCT c.fanout_id FROM chunk c CROSS JOIN fanout f ON f.id = c.fanout_id
        WHERE c.state = 1 AND c.owner = ?1 AND f.state = 3 ORDER BY c.fanout_id";

    // Explaining.
    FREEZE_STANDS = "SELECT state, freeze_cursor, freeze_chunks, freeze_owner IS NULL AS ownerless FROM fanout
        WHERE id = ?1";
    DEVICE_TIMES = "SELECT created_ms, follows_ms, state_ms FROM device WHERE device_key = ?1";
    FORMER_DEVICES = "SELECT device_key, deleted_ms FROM former_device WHERE id = ?1 ORDER BY deleted_ms DESC LIMIT ?2";
    FIRST_KEY = "SELECT substr(keys, 1, 8) FROM chunk_ids WHERE fanout_id = ?1 AND chunk_no = ?2";
    PLACE = "SELECT c.chunk_no, c.n, c.epoch, c.state, c.owner, i.lease_until_ms, c.not_before_ms, c.done, c.ok, c.maybe,
        c.unclean, c.rest_outcome, c.rest_cause, k.keys
        FROM chunk c JOIN chunk_ids k ON k.fanout_id = c.fanout_id AND k.chunk_no = c.chunk_no
        LEFT JOIN instance i ON i.boot_id = c.owner WHERE c.fanout_id = ?1 AND c.chunk_no = ?2";
    FAILURE = "SELECT outcome, cause, status, detail, attempts, variant, device_version, at_ms FROM failure
        WHERE fanout_id = ?1 AND chunk_no = ?2 AND ordinal = ?3";

    // Facts.
    CHUNK_BITS = "SELECT n, state, epoch, done, ok, maybe,
        coalesce((SELECT state = 3 FROM fanout WHERE id = ?1), 0) AS cancelled
        FROM chunk WHERE fanout_id = ?1 AND chunk_no = ?2";
    WRITE_BITS = "UPDATE chunk SET done = ?3, ok = ?4, maybe = ?5 WHERE fanout_id = ?1 AND chunk_no = ?2";
    CLOSE_CHUNK = "UPDATE chunk SET state = 2, owner = NULL, rest_outcome = ?3, rest_cause = ?4
        WHERE fanout_id = ?1 AND chunk_no = ?2";
    ADD_FAILURE = "INSERT OR IGNORE INTO failure (fanout_id, chunk_no, ordinal, device_key, outcome, cause, status,
        detail, attempts, retryable, variant, device_version, at_ms)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
    DROP_FAILURE = "DELETE FROM failure WHERE fanout_id = ?1 AND chunk_no = ?2 AND ordinal = ?3";
    PUT_PART = "INSERT INTO fanout_part (fanout_id, boot_id, counters) VALUES (?1, ?2, ?3)
        ON CONFLICT (fanout_id, boot_id) DO UPDATE SET counters = excluded.counters";

    // Tally, settling, reporting.
    CHUNK_COUNTS = "SELECT n, state, done, ok, rest_outcome FROM chunk WHERE fanout_id = ?1";
    FAILURE_COUNTS = "SELECT outcome, count(*) FROM failure WHERE fanout_id = ?1 GROUP BY outcome";
    PARTS = "SELECT counters FROM fanout_part WHERE fanout_id = ?1";
    VIEW = "SELECT id, event_id, event_type, match_id, kind, parent, class, state, occurred_ms, accepted_ms,
        deadline_ms, recipients, interrupted, settled_ms, settled FROM fanout WHERE id = ?1";
    LIST = "SELECT id FROM fanout WHERE id < ?1 AND (?2 IS NULL OR state = ?2) ORDER BY id DESC LIMIT ?3";
    BUSY = "SELECT EXISTS (SELECT 1 FROM chunk WHERE fanout_id = ?1 AND state = 1)
        OR EXISTS (SELECT 1 FROM fanout WHERE id = ?1 AND state = 0)
        OR EXISTS (SELECT 1 FROM chunk c JOIN fanout f ON f.id = c.fanout_id
        WHERE c.fanout_id = ?1 AND c.state = 0 AND f.state <> 3)";
    OPEN_CHUNK_LEFT = "SELECT EXISTS (SELECT 1 FROM chunk WHERE fanout_id = ?1 AND state <> 2)";
    JUDGE_DEVICES = "UPDATE device SET state = CASE f.outcome WHEN 2 THEN 1 ELSE 2 END, state_ms = ?2,
        version = version + 1 FROM failure f
        WHERE f.fanout_id = ?1 AND f.outcome IN (2, 3, 4) AND device.device_key = f.device_key
        AND device.version = f.device_version AND device.state = 0";
    SILENCE_JUDGED = "UPDATE follow SET kinds = 0 WHERE device_key IN (SELECT f.device_key FROM failure f
        JOIN device d ON d.device_key = f.device_key
        WHERE f.fanout_id = ?1 AND f.outcome IN (2, 3, 4) AND d.state <> 0) AND kinds <> 0";
    SETTLE = "UPDATE fanout SET state = CASE state WHEN 3 THEN 3 ELSE 2 END, settled_ms = ?2, settled = ?3
        WHERE id = ?1";
    MARK_REPORTED = "UPDATE fanout SET reported_ms = ?2 WHERE id = ?1 AND settled_ms IS NOT NULL
        AND reported_ms IS NULL";
    COMPLETE = "SELECT id FROM fanout f WHERE settled_ms IS NULL AND state <> 0
        AND NOT EXISTS (SELECT 1 FROM chunk c WHERE c.fanout_id = f.id AND c.state <> 2
        AND (f.state <> 3 OR c.state = 1)) ORDER BY id LIMIT ?1";
    UNREPORTED = "SELECT id FROM fanout WHERE settled_ms IS NOT NULL AND reported_ms IS NULL AND settled_ms <= ?1
        ORDER BY id LIMIT ?2";
    BACKLOG = "SELECT count(*) FROM fanout WHERE settled_ms IS NULL";
    OPEN_CHUNKS_BY_CLASS = "SELECT class, count(*) FROM chunk WHERE state = 0 GROUP BY class";

    // Devices.
    DEVICE_BY_ID = "SELECT device_key, id, user_id, token, fid, platform, locale, muted, state, version, registered_ms
        FROM device WHERE id = ?1";
    STORED_DEVICE = "SELECT device_key, token, fid, muted, state FROM device WHERE id = ?1";
    OTHER_HOLDER = "SELECT device_key, id FROM device WHERE (token = ?2 OR fid = ?3) AND id <> ?1";
    ADD_DEVICE = "INSERT INTO device (id, user_id, token, fid, platform, locale, registered_ms, created_ms, follows_ms)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?7) RETURNING device_key";
    // A verdict on its way names the version it saw: a device that changed since is not the one that was judged.
    SET_DEVICE = "UPDATE device SET version = version + (state <> 0
        OR (user_id, token, fid, platform, locale) IS NOT (?2, ?3, ?4, ?5, ?6)),
        user_id = ?2, token = ?3, fid = ?4, platform = ?5, locale = ?6, registered_ms = ?7, state_ms = CASE WHEN state = 0 THEN state_ms ELSE ?7 END, state = 0
        WHERE device_key = ?1";
    DROP_DEVICE = "DELETE FROM device WHERE device_key = ?1";
    DROP_FOLLOWS = "DELETE FROM follow WHERE device_key = ?1";
    FOLLOWS = "SELECT subject, wanted FROM follow WHERE device_key = ?1 ORDER BY subject";
    ADD_FOLLOW = "INSERT INTO follow (subject, device_key, wanted, kinds) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (subject, device_key) DO UPDATE SET wanted = excluded.wanted, kinds = excluded.kinds";
    SET_MUTED = "UPDATE device SET muted = ?2, follows_ms = ?3 WHERE device_key = ?1";
    WAKE_FOLLOWS = "UPDATE follow SET kinds = wanted & ~?2 WHERE device_key = ?1";

    // Many devices at once.
    HELD_DEVICES = "SELECT device_key, id, token, fid, state FROM device WHERE id IN (SELECT value FROM json_each(?1))
        UNION SELECT device_key, id, token, fid, state FROM device WHERE token IN (SELECT value FROM json_each(?2))
        UNION SELECT device_key, id, token, fid, state FROM device WHERE fid IN (SELECT value FROM json_each(?3))";
    // An address nobody else can have, while the devices of an import change places.
    PARK_ADDRESSES = "UPDATE device SET token = NULL, fid = 'moving ' || device_key
        WHERE device_key IN (SELECT value FROM json_each(?1))";
    DROP_DEVICES = "DELETE FROM device WHERE device_key IN (SELECT value FROM json_each(?1))";
    DROP_FOLLOWS_OF = "DELETE FROM follow WHERE device_key IN (SELECT value FROM json_each(?1))";
    // `WHERE true`: without it SQLite reads ON as the beginning of a join.
    IMPORT_DEVICES = "INSERT INTO device AS d (id, user_id, token, fid, platform, locale, state, state_ms, registered_ms,
        created_ms, follows_ms)
        SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
        CASE WHEN value ->> 6 = 0 THEN 0 ELSE ?2 END, ?2, ?2, CASE WHEN value ->> 7 THEN ?2 ELSE 0 END
        FROM json_each(?1) WHERE true
        ON CONFLICT (id) DO UPDATE SET version = d.version
        + ((d.user_id, d.token, d.fid, d.platform, d.locale, d.state) IS NOT (excluded.user_id, excluded.token,
        excluded.fid, excluded.platform, excluded.locale, excluded.state)),
        user_id = excluded.user_id, token = excluded.token, fid = excluded.fid, platform = excluded.platform,
        locale = excluded.locale, registered_ms = ?2, follows_ms = max(d.follows_ms, excluded.follows_ms),
        state_ms = CASE WHEN d.state = excluded.state THEN d.state_ms ELSE ?2 END, state = excluded.state
        RETURNING id, device_key";
    IMPORT_MUTES = "UPDATE device SET muted = json_each.value ->> 1 FROM json_each(?1)
        WHERE device.device_key = json_each.value ->> 0 AND device.muted <> json_each.value ->> 1";
    IMPORT_FOLLOWS = "INSERT INTO follow (subject, device_key, wanted, kinds)
        SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?1)";
    WAKE_FOLLOWS_OF = "UPDATE follow SET kinds = wanted & ~d.muted FROM device AS d
        WHERE d.device_key = follow.device_key AND follow.device_key IN (SELECT value FROM json_each(?1))";
    DEVICE_PAGE = "SELECT device_key, id, user_id, token, fid, platform, locale, muted, state, version, registered_ms
        FROM device WHERE device_key > ?1 AND (?3 IS NULL OR state = ?3) ORDER BY device_key LIMIT ?2";
    FOLLOWS_OF = "SELECT device_key, subject, wanted FROM follow
        WHERE device_key IN (SELECT value FROM json_each(?1))";
}

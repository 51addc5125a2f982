//! Owns every statement SQLite is asked, by name. A test prepares each one on a migrated database.
//! Must never know: what its values mean.

macro_rules! statements {
    ($($name:ident = $sql:literal;)+) => {
        $(pub(in crate::store::sqlite) const $name: &str = $sql;)+

        /// Every statement of this file by name.
        pub(super) const LISTED: &[(&str, &str)] = &[$((stringify!($name), $name),)+];
    };
}

mod claim;
mod derived;

pub(super) use claim::*;
pub(super) use derived::*;

/// Every statement by name, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &{
    let files = [LISTED, claim::LISTED, derived::LISTED];
    let mut all = [("", ""); LISTED.len() + claim::LISTED.len() + derived::LISTED.len()];
    let (mut file, mut of_file, mut i) = (0, 0, 0);
    while i < all.len() {
        if of_file == files[file].len() {
            (file, of_file) = (file + 1, 0);
        }
        all[i] = files[file][of_file];
        (of_file, i) = (of_file + 1, i + 1);
    }
    all
};

// Literal codes: fan-out state 0 freezing, 1 sending, 2 done, 3 cancelled, 4 set aside; chunk state 0 open, 1 owned,
// 2 closed, 3 set aside; device state 0 live, 1 tombstoned, 2 suspended. SQLite uses a partial index only when the
// statement repeats its condition as a literal.
statements! {
    HAS_MIGRATIONS = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = '_sqlx_migrations')";
    APPLIED = "SELECT version, checksum FROM _sqlx_migrations ORDER BY version";

    // Instances.
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
    // One that is only named by a correction, with an empty hash, was not posted.
    EVENT_SEEN = "SELECT content_hash, fanout_id FROM event WHERE event_id = ?1 AND content_hash <> x''";
    EVENT_KNOWN = "SELECT e.content_hash, e.fanout_id, f.event_id, f.match_id, coalesce(f.family, f.id) AS family
        FROM event e LEFT JOIN fanout f ON f.id = e.fanout_id WHERE e.event_id = ?1";
    TIP = "SELECT id, coalesce(root_event, event_id), collapse_key, state = 0 AND freeze_chunks = 0 FROM fanout
        WHERE (id = ?1 OR family = ?1) AND kind <> 2 AND superseded_by IS NULL ORDER BY id DESC LIMIT 1";
    SAME_NEWS = "SELECT f.id, f.event_id FROM repeat_window w CROSS JOIN fanout f ON f.id = w.fanout_id
        WHERE w.meaning = ?1 AND f.state <> 3 AND f.superseded_by IS NULL AND f.deadline_ms > ?2";
    CORRECTED_NEWS = "SELECT coalesce(f.family, f.id) FROM repeat_window w CROSS JOIN fanout f ON f.id = w.fanout_id
        WHERE w.meaning = ?1 AND f.superseded_by IS NOT NULL AND w.until_ms > ?2";
    OPEN_WINDOW = "INSERT INTO repeat_window (meaning, fanout_id, until_ms) VALUES (?1, ?2, ?3)
        ON CONFLICT (meaning) DO UPDATE SET fanout_id = excluded.fanout_id, until_ms = excluded.until_ms";
    DROP_EVENT = "DELETE FROM event WHERE event_id = ?1";
    STOP_FAMILY = "UPDATE fanout SET superseded_by = ?2, state = CASE WHEN settled_ms IS NULL THEN 3 ELSE state END,
        freeze_owner = CASE WHEN settled_ms IS NULL AND state = 0 THEN NULL ELSE freeze_owner END
        WHERE (id = ?1 OR family = ?1) AND id <> ?2 AND superseded_by IS NULL RETURNING id, settled_ms IS NULL";
    // What of it is held yet goes by another name from now on, and reaches more people: the epoch takes its freeze from
    // whoever has read it before, to be read anew.
    JOIN_FAMILY = "UPDATE fanout SET family = ?2, root_event = ?3, collapse_key = ?4,
        freeze_epoch = freeze_epoch + 1 WHERE id = ?1 OR family = ?1";
    ADD_FANOUT = "INSERT INTO fanout (event_id, event_type, match_id, class, occurred_ms, accepted_ms, deadline_ms,
        freeze_owner, kind, parent, state, source, family, root_event, hold_until_ms, superseded_by,
        collapse_key)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17) RETURNING id";
    ADD_EVENT = "INSERT INTO event (event_id, content_hash, fanout_id, body, accepted_ms) VALUES (?1, ?2, ?3, ?4, ?5)";
    JOB = "SELECT f.id, f.class, f.accepted_ms, f.deadline_ms, e.body, f.source, f.parent, f.root_event, f.collapse_key,
        f.max_attempts, f.resumed, f.paused <> 0 AS paused, CASE WHEN f.max_attempts IS NULL THEN 0 ELSE coalesce((SELECT sum(p.counters ->> 'attempts')
        FROM fanout_part p WHERE p.fanout_id = f.id), 0) END AS spent FROM fanout f
        JOIN event e ON e.event_id = f.event_id WHERE f.id = ?1";
    FREE_FREEZES = "SELECT id FROM fanout WHERE settled_ms IS NULL AND state = 0 AND hold_until_ms <= ?1
        AND id NOT IN (SELECT value FROM json_each(?6)) AND (freeze_owner IS NULL
        OR freeze_owner NOT IN (SELECT boot_id FROM instance WHERE lease_until_ms > ?1)
        OR (freeze_owner = ?3 AND accepted_ms <= ?4 AND id NOT IN (SELECT value FROM json_each(?5))))
        ORDER BY class, id LIMIT ?2";
    TAKE_FREEZE = "UPDATE fanout SET freeze_owner = ?2, freeze_epoch = freeze_epoch + 1 WHERE id = ?1
        RETURNING freeze_epoch, freeze_cursor, freeze_chunks";
    FOLLOWER_PAGE = "SELECT device_key FROM follow WHERE subject = ?1 AND device_key > ?2 AND (kinds & ?3) <> 0
        ORDER BY device_key LIMIT ?4";
    FREEZE_STEP = "UPDATE fanout SET freeze_cursor = ?5, freeze_chunks = ?6,
        recipients = recipients + ?7,
        never_saw = CASE WHEN ?10 IS NULL THEN never_saw ELSE coalesce(never_saw, 0) + ?10 END, state = CASE WHEN NOT ?8 THEN 0
        WHEN EXISTS (SELECT 1 FROM chunk WHERE fanout_id = ?1 AND state = 3) THEN 4 ELSE 1 END
        WHERE id = ?1 AND state = 0 AND freeze_owner = ?2 AND freeze_epoch = ?3 AND freeze_cursor = ?4
        AND freeze_chunks = ?9 RETURNING class, paused <> 0";
    STANDS = "SELECT EXISTS (SELECT 1 FROM fanout WHERE id = ?1 AND freeze_owner = ?2 AND freeze_epoch = ?3
        AND freeze_cursor = ?4 AND freeze_chunks = ?5 AND (state <> 0) = ?6 AND state <> 3)";
    ADD_CHUNK_IDS = "INSERT INTO chunk_ids (fanout_id, chunk_no, keys) VALUES (?1, ?2, ?3)";
    // ?6 is state and epoch at once: 1 = owned under epoch 1, 0 = open and never owned.
    ADD_CHUNK = "INSERT INTO chunk (fanout_id, chunk_no, n, class, rank, state, owner, epoch, done, ok, maybe)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?6, ?8, ?8, ?8)";

    // Cancelling: outcome 11 is `cancelled`.
    CANCEL = "UPDATE fanout SET state = 3, freeze_owner = CASE WHEN state = 0 THEN NULL ELSE freeze_owner END
        WHERE id = ?1 AND settled_ms IS NULL AND state <> 3";
    FANOUT_STATE = "SELECT state FROM fanout WHERE id = ?1";
    CLOSE_CANCELLED = "UPDATE chunk SET state = 2, owner = NULL, rest_outcome = 11, rest_cause = 0
        WHERE fanout_id = ?1 AND state IN (0, 3)";
    CANCELLED_IN_HAND = "SELECT DISTINCT c.fanout_id FROM chunk c CROSS JOIN fanout f ON f.id = c.fanout_id
        WHERE c.state = 1 AND c.owner = ?1 AND f.state = 3 ORDER BY c.fanout_id";

    // Explaining.
    FREEZE_STANDS = "SELECT state, freeze_cursor, freeze_chunks, freeze_owner IS NULL AS ownerless, superseded_by, paused FROM fanout
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
    CHUNK_BITS = "SELECT c.n, c.state, c.epoch, c.done, c.ok, c.maybe, coalesce(f.state = 3, 0) AS cancelled,
        f.settled_ms IS NOT NULL AS settled FROM chunk c LEFT JOIN fanout f ON f.id = c.fanout_id
        WHERE c.fanout_id = ?1 AND c.chunk_no = ?2";
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
        deadline_ms, recipients, interrupted, settled_ms, settled, superseded_by, never_saw, paused, max_attempts
        FROM fanout WHERE id = ?1";
    LIST = "SELECT id FROM fanout WHERE id < ?1 AND (?2 IS NULL OR
        CASE WHEN paused <> 0 AND state IN (0, 1, 4) THEN 5 ELSE state END = ?2)
        AND (?4 IS NULL OR accepted_ms >= ?4) AND (?5 IS NULL OR accepted_ms < ?5) ORDER BY id DESC LIMIT ?3";
    OPEN_SINCE = "SELECT min(accepted_ms) FROM fanout WHERE settled_ms IS NULL";
    BUSY = "SELECT EXISTS (SELECT 1 FROM chunk WHERE fanout_id = ?1 AND state = 1)
        OR EXISTS (SELECT 1 FROM fanout WHERE id = ?1 AND state = 0)
        OR EXISTS (SELECT 1 FROM chunk c JOIN fanout f ON f.id = c.fanout_id
        WHERE c.fanout_id = ?1 AND c.state = 0 AND f.state <> 3)";
    OPEN_CHUNK_LEFT = "SELECT EXISTS (SELECT 1 FROM chunk WHERE fanout_id = ?1 AND state <> 2)";
    JUDGE_DEVICES = "UPDATE device SET state = CASE f.outcome WHEN 2 THEN 1 ELSE 2 END, state_ms = ?2,
        version = version + 1 FROM failure f
        WHERE f.fanout_id = ?1 AND f.outcome IN (2, 3, 4) AND device.device_key = f.device_key
        AND device.version = f.device_version AND device.state = 0
        AND device.platform IN (SELECT value FROM json_each(?3))";
    AGAINST = "SELECT variant, count(*) FROM failure WHERE fanout_id = ?1 AND outcome IN (2, 3, 4) GROUP BY variant";
    ACCEPTED_SHARE = "SELECT accept_dead_percent FROM fanout WHERE id = ?1";
    KNOWN = "SELECT platform, answered, against, excess FROM dead_share WHERE platform IN (1, 2, 3)";
    LEARN = "UPDATE dead_share SET answered = ?2, against = ?3, excess = ?4,
        leap = CASE WHEN ?6 THEN NULL ELSE coalesce(?5, leap) END WHERE platform = ?1";
    LEAPS = "SELECT leap FROM dead_share WHERE platform IN (1, 2, 3) AND leap IS NOT NULL ORDER BY platform";
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
    BACKLOG = "SELECT class, count(*) FROM fanout WHERE settled_ms IS NULL AND (paused = 0 OR deadline_ms <= ?1)
        GROUP BY class";
    OPEN_CHUNKS_BY_CLASS = "SELECT class, count(*) FROM chunk WHERE state = 0 AND fanout_id NOT IN
        (SELECT id FROM fanout WHERE settled_ms IS NULL AND paused <> 0 AND deadline_ms > ?1) GROUP BY class";

    // Sweeps: kind 3.
    LIVE_PAGE = "SELECT device_key FROM device WHERE device_key > ?1 AND state = 0 ORDER BY device_key LIMIT ?2";
    LIVE_COUNT = "SELECT count(*) FROM device WHERE device_key > ?1 AND state = 0";
    RUNNING_SWEEP = "SELECT id FROM fanout WHERE kind = 3 AND settled_ms IS NULL";
    BEGIN_SWEEP = "INSERT INTO fanout (event_id, event_type, match_id, kind, class, source, occurred_ms, accepted_ms,
        deadline_ms, freeze_owner, freeze_cursor, swept_from, max_attempts, accept_dead_percent)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?10, ?11, ?12) RETURNING id";
    ANY_PAUSED_SWEEP = "SELECT EXISTS (SELECT 1 FROM fanout WHERE kind = 3 AND settled_ms IS NULL AND paused <> 0
        AND state <> 3)";
    END_PAUSED_SWEEP = "UPDATE fanout SET state = 3, freeze_owner = CASE WHEN state = 0 THEN NULL ELSE freeze_owner END
        WHERE kind = 3 AND settled_ms IS NULL AND paused <> 0 AND state <> 3";
    SWEEP_STAND = "SELECT f.freeze_cursor, f.swept_from, f.settled FROM fanout f WHERE f.id = ?1 AND f.kind = 3";
    FIRST_UNFINISHED = "SELECT c.chunk_no, c.n, c.done, i.keys FROM chunk c
        JOIN chunk_ids i ON i.fanout_id = c.fanout_id AND i.chunk_no = c.chunk_no
        WHERE c.fanout_id = ?1 AND c.chunk_no > ?2 AND (c.state <> 2 OR c.rest_outcome IS NOT NULL)
        ORDER BY c.chunk_no LIMIT 1";

    // Retention. There are at most a hundred doomed fan-outs.
    TAKE_UPKEEP = "UPDATE upkeep SET owner = ?1, until_ms = ?3 WHERE task = 'retention' AND (owner = ?1 OR until_ms < ?2)";
    PURGE_FAILURES = "DELETE FROM failure WHERE (fanout_id, chunk_no, ordinal) IN (SELECT x.fanout_id, x.chunk_no,
        x.ordinal FROM doomed d CROSS JOIN failure x ON x.fanout_id = d.fanout_id LIMIT ?1)";
    PURGE_PARTS = "DELETE FROM fanout_part WHERE (fanout_id, boot_id) IN (SELECT x.fanout_id, x.boot_id
        FROM doomed d CROSS JOIN fanout_part x ON x.fanout_id = d.fanout_id LIMIT ?1)";
    PURGE_CHUNK_IDS = "DELETE FROM chunk_ids WHERE (fanout_id, chunk_no) IN (SELECT x.fanout_id, x.chunk_no
        FROM doomed d CROSS JOIN chunk_ids x ON x.fanout_id = d.fanout_id LIMIT ?1)";
    PURGE_CHUNKS = "DELETE FROM chunk WHERE (fanout_id, chunk_no) IN (SELECT x.fanout_id, x.chunk_no
        FROM doomed d CROSS JOIN chunk x ON x.fanout_id = d.fanout_id LIMIT ?1)";
    BURIED = "DELETE FROM doomed";
    DUE = "SELECT f.id FROM fanout f WHERE f.settled_ms IS NOT NULL AND f.settled_ms < ?1 AND f.reported_ms IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM fanout c WHERE c.parent IS NOT NULL AND c.parent = f.id)
        ORDER BY f.settled_ms LIMIT 100";
    CONDEMN_EVENTS = "DELETE FROM event WHERE event_id IN (SELECT f.event_id FROM json_each(?1)
        CROSS JOIN fanout f ON f.id = json_each.value JOIN event e ON e.event_id = f.event_id AND e.fanout_id = f.id)";
    CONDEMN_FANOUTS = "DELETE FROM fanout WHERE id IN (SELECT value FROM json_each(?1))";
    CONDEMN = "INSERT INTO doomed (fanout_id) SELECT value FROM json_each(?1)";
    // Numbers are given in the order of acceptance.
    PURGE_FORMER = "DELETE FROM former_device WHERE device_key IN (SELECT device_key FROM former_device
        WHERE deleted_ms < coalesce((SELECT accepted_ms - 60000 FROM fanout
        WHERE id = (SELECT min(id) FROM fanout)), ?1)
        ORDER BY deleted_ms LIMIT ?2)";
    PURGE_WINDOWS = "DELETE FROM repeat_window WHERE meaning IN (SELECT meaning FROM repeat_window
        WHERE until_ms < ?1 LIMIT ?2)";
    PURGE_EVENTS = "DELETE FROM event WHERE event_id IN (SELECT e.event_id FROM event e WHERE e.accepted_ms < ?1
        AND NOT EXISTS (SELECT 1 FROM fanout f WHERE f.id = e.fanout_id) ORDER BY e.accepted_ms LIMIT ?2)";
    PURGE_INSTANCES = "DELETE FROM instance WHERE boot_id IN (SELECT boot_id FROM instance
        WHERE lease_until_ms < ?1 AND heartbeat_ms < ?1 LIMIT ?2)";

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
    HELD_DEVICES = "SELECT device_key, id, token, fid, state, user_id, platform, locale, muted FROM device
        WHERE device_key IN (SELECT d.device_key FROM json_each(?1) CROSS JOIN device d ON d.id = json_each.value
        UNION ALL SELECT d.device_key FROM json_each(?2) CROSS JOIN device d ON d.token = json_each.value
        UNION ALL SELECT d.device_key FROM json_each(?3) CROSS JOIN device d ON d.fid = json_each.value)";
    HELD_FOLLOWS = "SELECT device_key, subject, wanted, kinds FROM follow
        WHERE device_key IN (SELECT value FROM json_each(?1)) LIMIT ?2";
    // An address nobody else can have, while the devices of an import change places.
    PARK_ADDRESSES = "UPDATE device SET token = NULL, fid = 'moving ' || device_key
        WHERE device_key IN (SELECT value FROM json_each(?1))";
    DROP_DEVICES = "DELETE FROM device WHERE device_key IN (SELECT value FROM json_each(?1))";
    DROP_FOLLOWS_OF = "DELETE FROM follow WHERE device_key IN (SELECT value FROM json_each(?1))";
    LAST_DEVICE_KEY = "SELECT seq FROM sqlite_sequence WHERE name = 'device'";
    // One row here, as many as there are when they are written. `OR FAIL`: a fault undoes the whole job anyway, so that
    // SQLite need not keep what would undo the statement alone.
    ADD_DEVICES = "INSERT OR FAIL INTO device (device_key, id, user_id, token, fid, platform, locale, muted, state, state_ms,
        registered_ms, created_ms, follows_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    ADD_FOLLOWS = "INSERT OR FAIL INTO follow (subject, device_key, wanted, kinds) VALUES (?, ?, ?, ?)";
    // The version moves only when a verdict on the old row would not hold for the new one.
    UPDATE_DEVICES = "UPDATE device SET version = version + ((user_id, token, fid, platform, locale, state) IS NOT
        (value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6)),
        user_id = value ->> 1, token = value ->> 2, fid = value ->> 3, platform = value ->> 4, locale = value ->> 5,
        registered_ms = ?2, muted = coalesce(value ->> 7, muted),
        follows_ms = CASE WHEN value ->> 7 IS NULL THEN follows_ms ELSE ?2 END,
        state_ms = CASE WHEN state = value ->> 6 THEN state_ms ELSE ?2 END, state = value ->> 6
        FROM json_each(?1) WHERE device.device_key = json_each.value ->> 0";
    WAKE_FOLLOWS_OF = "UPDATE follow SET kinds = wanted & ~d.muted FROM device AS d
        WHERE d.device_key = follow.device_key AND follow.device_key IN (SELECT value FROM json_each(?1))";
    DEVICE_PAGE = "SELECT device_key, id, user_id, token, fid, platform, locale, muted, state, version, registered_ms
        FROM device WHERE device_key > ?1 AND (?3 IS NULL OR state = ?3) ORDER BY device_key LIMIT ?2";
    FOLLOWS_OF = "SELECT device_key, subject, wanted FROM follow
        WHERE device_key IN (SELECT value FROM json_each(?1))";
}

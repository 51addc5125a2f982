-- The spine, as in migrations/postgres/0001_spine.sql: the same tables, columns and meaning.
-- What SQLite has no type for: a boot id is a BLOB of 16 bytes, a bitmap a BLOB with bit 0 of byte 0 first,
-- frozen keys a BLOB of little-endian 64-bit numbers, a boolean 0 or 1.
-- All times are milliseconds since the epoch.

CREATE TABLE instance (
    boot_id        BLOB    NOT NULL PRIMARY KEY,
    started_ms     INTEGER NOT NULL,
    heartbeat_ms   INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: the key of a deleted device is never given to another one, for frozen chunks still name it.
CREATE TABLE device (
    device_key    INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    user_id       TEXT    NOT NULL,
    token         TEXT    UNIQUE,
    fid           TEXT    UNIQUE,
    platform      INTEGER NOT NULL,
    locale        TEXT    NOT NULL,
    muted         INTEGER NOT NULL DEFAULT 0,
    state         INTEGER NOT NULL DEFAULT 0,
    state_ms      INTEGER NOT NULL DEFAULT 0,
    version       INTEGER NOT NULL DEFAULT 1,
    registered_ms INTEGER NOT NULL,
    CHECK ((token IS NULL) <> (fid IS NULL))
) STRICT;

-- kinds = wanted without the device's mutes, and 0 while the device is dead: a page of followers joins nothing.
-- WITHOUT ROWID: the primary key is the table, so a page is one range of it.
CREATE TABLE follow (
    subject    TEXT    NOT NULL,
    device_key INTEGER NOT NULL,
    wanted     INTEGER NOT NULL,
    kinds      INTEGER NOT NULL,
    PRIMARY KEY (subject, device_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX follow_device ON follow (device_key);

CREATE TABLE event (
    event_id     TEXT    NOT NULL PRIMARY KEY,
    content_hash BLOB    NOT NULL,
    fanout_id    INTEGER NOT NULL,
    body         TEXT    NOT NULL,
    accepted_ms  INTEGER NOT NULL
) STRICT;

CREATE TABLE fanout (
    id            INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    event_id      TEXT    NOT NULL,
    event_type    TEXT    NOT NULL,
    match_id      TEXT    NOT NULL,
    kind          INTEGER NOT NULL DEFAULT 0,
    parent        INTEGER,
    class         INTEGER NOT NULL,
    state         INTEGER NOT NULL DEFAULT 0,
    occurred_ms   INTEGER NOT NULL,
    accepted_ms   INTEGER NOT NULL,
    deadline_ms   INTEGER NOT NULL,
    freeze_owner  BLOB,
    freeze_epoch  INTEGER NOT NULL DEFAULT 1,
    freeze_cursor INTEGER NOT NULL DEFAULT 0,
    freeze_chunks INTEGER NOT NULL DEFAULT 0,
    recipients    INTEGER NOT NULL DEFAULT 0,
    interrupted   INTEGER NOT NULL DEFAULT 0,
    settled_ms    INTEGER,
    settled       TEXT,
    reported_ms   INTEGER
) STRICT;
CREATE INDEX fanout_open ON fanout (id) WHERE settled_ms IS NULL;
CREATE INDEX fanout_unreported ON fanout (id) WHERE settled_ms IS NOT NULL AND reported_ms IS NULL;

-- Frozen and immutable: ordinal i of a chunk means the same device for ever.
CREATE TABLE chunk_ids (
    fanout_id INTEGER NOT NULL,
    chunk_no  INTEGER NOT NULL,
    keys      BLOB    NOT NULL,
    PRIMARY KEY (fanout_id, chunk_no)
) STRICT;

-- Hot and narrow. Neither bitmaps nor owner nor epoch are indexed: a flush rewrites one page and no index.
CREATE TABLE chunk (
    fanout_id     INTEGER NOT NULL,
    chunk_no      INTEGER NOT NULL,
    n             INTEGER NOT NULL,
    class         INTEGER NOT NULL,
    rank          INTEGER NOT NULL,
    state         INTEGER NOT NULL DEFAULT 0,   -- 0 open, 1 owned, 2 closed, 3 set aside
    owner         BLOB,
    epoch         INTEGER NOT NULL DEFAULT 0,
    not_before_ms INTEGER NOT NULL DEFAULT 0,
    done          BLOB    NOT NULL,
    ok            BLOB    NOT NULL,
    maybe         BLOB    NOT NULL,
    unclean       INTEGER NOT NULL DEFAULT 0,
    takeovers     INTEGER NOT NULL DEFAULT 0,   -- without progress
    mark          INTEGER NOT NULL DEFAULT 0,   -- bits done at the last takeover
    rest_outcome  INTEGER,
    rest_cause    INTEGER,
    PRIMARY KEY (fanout_id, chunk_no)
) STRICT, WITHOUT ROWID;
CREATE INDEX chunk_open ON chunk (class, rank) WHERE state = 0;
CREATE INDEX chunk_owned ON chunk (fanout_id, chunk_no) WHERE state = 1;

CREATE TABLE failure (
    fanout_id      INTEGER NOT NULL,
    chunk_no       INTEGER NOT NULL,
    ordinal        INTEGER NOT NULL,
    device_key     INTEGER NOT NULL,
    outcome        INTEGER NOT NULL,
    cause          INTEGER NOT NULL,
    status         INTEGER NOT NULL,
    detail         TEXT    NOT NULL,
    attempts       INTEGER NOT NULL,
    retryable      INTEGER NOT NULL,
    variant        TEXT    NOT NULL,
    device_version INTEGER NOT NULL,
    at_ms          INTEGER NOT NULL,
    PRIMARY KEY (fanout_id, chunk_no, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE fanout_part (
    fanout_id INTEGER NOT NULL,
    boot_id   BLOB    NOT NULL,
    counters  TEXT    NOT NULL,
    PRIMARY KEY (fanout_id, boot_id)
) STRICT, WITHOUT ROWID;

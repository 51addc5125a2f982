-- The spine: devices and what they follow, events, fan-outs, chunks with monotone bitmaps, instances with leases.
-- All times are milliseconds since the epoch, database clock, so that both databases share one set of records.

-- Database time, and not that of the transaction's start: a lease or a deadline is measured from now.
CREATE FUNCTION fanfare_now_ms() RETURNS bigint LANGUAGE sql VOLATILE
    AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint';

CREATE TABLE instance (
    boot_id        uuid   PRIMARY KEY,
    started_ms     bigint NOT NULL,
    heartbeat_ms   bigint NOT NULL,
    lease_until_ms bigint NOT NULL
);

CREATE TABLE device (
    device_key    bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id            text     NOT NULL UNIQUE,
    user_id       text     NOT NULL,
    token         text     UNIQUE,
    fid           text     UNIQUE,
    platform      smallint NOT NULL,
    locale        text     NOT NULL,
    muted         bigint   NOT NULL DEFAULT 0,
    state         smallint NOT NULL DEFAULT 0,
    state_ms      bigint   NOT NULL DEFAULT 0,
    version       bigint   NOT NULL DEFAULT 1,
    registered_ms bigint   NOT NULL,
    CHECK ((token IS NULL) <> (fid IS NULL))
);

-- kinds = wanted without the device's mutes, and 0 while the device is dead: a page of followers joins nothing.
CREATE TABLE follow (
    subject    text   NOT NULL,
    device_key bigint NOT NULL,
    wanted     bigint NOT NULL,
    kinds      bigint NOT NULL,
    PRIMARY KEY (subject, device_key) INCLUDE (kinds)
);
CREATE INDEX follow_device ON follow (device_key);

CREATE TABLE event (
    event_id     text   PRIMARY KEY,
    content_hash bytea  NOT NULL,
    fanout_id    bigint NOT NULL,
    body         text   NOT NULL,
    accepted_ms  bigint NOT NULL
);

CREATE TABLE fanout (
    id            bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id      text     NOT NULL,
    event_type    text     NOT NULL,
    match_id      text     NOT NULL,
    kind          smallint NOT NULL DEFAULT 0,
    parent        bigint,
    class         smallint NOT NULL,
    state         smallint NOT NULL DEFAULT 0,
    occurred_ms   bigint   NOT NULL,
    accepted_ms   bigint   NOT NULL,
    deadline_ms   bigint   NOT NULL,
    freeze_owner  uuid,
    freeze_epoch  integer  NOT NULL DEFAULT 1,
    freeze_cursor bigint   NOT NULL DEFAULT 0,
    freeze_chunks integer  NOT NULL DEFAULT 0,
    recipients    bigint   NOT NULL DEFAULT 0,
    interrupted   integer  NOT NULL DEFAULT 0,
    settled_ms    bigint,
    settled       text,
    reported_ms   bigint
);
CREATE INDEX fanout_open ON fanout (id) WHERE settled_ms IS NULL;
CREATE INDEX fanout_unreported ON fanout (id) WHERE settled_ms IS NOT NULL AND reported_ms IS NULL;

-- Frozen and immutable: ordinal i of a chunk means the same device for ever.
CREATE TABLE chunk_ids (
    fanout_id bigint   NOT NULL,
    chunk_no  integer  NOT NULL,
    keys      bigint[] NOT NULL,
    PRIMARY KEY (fanout_id, chunk_no)
);

-- Hot and narrow. Neither bitmaps nor owner nor epoch are indexed, so that a flush is a heap-only update.
CREATE TABLE chunk (
    fanout_id      bigint      NOT NULL,
    chunk_no       integer     NOT NULL,
    n              smallint    NOT NULL,
    class          smallint    NOT NULL,
    rank           bigint      NOT NULL,
    state          smallint    NOT NULL DEFAULT 0,   -- 0 open, 1 owned, 2 closed, 3 set aside
    owner          uuid,
    epoch          integer     NOT NULL DEFAULT 0,
    not_before_ms  bigint      NOT NULL DEFAULT 0,
    done           bit varying NOT NULL,
    ok             bit varying NOT NULL,
    maybe          bit varying NOT NULL,
    unclean        boolean     NOT NULL DEFAULT false,
    takeovers      smallint    NOT NULL DEFAULT 0,   -- without progress
    mark           smallint    NOT NULL DEFAULT 0,   -- bits done at the last takeover
    rest_outcome   smallint,
    rest_cause     smallint,
    PRIMARY KEY (fanout_id, chunk_no)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX chunk_open ON chunk (class, rank) WHERE state = 0;
CREATE INDEX chunk_owned ON chunk (fanout_id, chunk_no) WHERE state = 1;

CREATE TABLE failure (
    fanout_id      bigint   NOT NULL,
    chunk_no       integer  NOT NULL,
    ordinal        smallint NOT NULL,
    device_key     bigint   NOT NULL,
    outcome        smallint NOT NULL,
    cause          smallint NOT NULL,
    status         smallint NOT NULL,
    detail         text     NOT NULL,
    attempts       smallint NOT NULL,
    retryable      boolean  NOT NULL,
    variant        text     NOT NULL,
    device_version bigint   NOT NULL,
    at_ms          bigint   NOT NULL,
    PRIMARY KEY (fanout_id, chunk_no, ordinal)
);

CREATE TABLE fanout_part (
    fanout_id bigint NOT NULL,
    boot_id   uuid   NOT NULL,
    counters  text   NOT NULL,
    PRIMARY KEY (fanout_id, boot_id)
);

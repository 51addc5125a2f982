-- What the guard against mass verdicts remembers, and what retention needs to delete in small steps.

-- The fleet's own measure, one row per platform (1 android, 2 ios, 3 web): answers of late for or against devices, and
-- what was found beyond the share allowed, in hundredths of a device.
CREATE TABLE dead_share (
    platform INTEGER NOT NULL PRIMARY KEY,
    answered INTEGER NOT NULL DEFAULT 0,
    against  INTEGER NOT NULL DEFAULT 0,
    excess   INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO dead_share (platform) VALUES (1), (2), (3);

-- Fan-outs that are gone for everybody, whose rows are still being deleted.
CREATE TABLE doomed (
    fanout_id INTEGER NOT NULL PRIMARY KEY
) STRICT;

-- Who does the upkeep now; nobody else does until then.
CREATE TABLE upkeep (
    task     TEXT    NOT NULL PRIMARY KEY,
    owner    BLOB,
    until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO upkeep (task, until_ms) VALUES ('retention', 0);

CREATE INDEX IF NOT EXISTS fanout_parent ON fanout (parent) WHERE parent IS NOT NULL;
CREATE INDEX fanout_settled ON fanout (settled_ms) WHERE settled_ms IS NOT NULL;
CREATE INDEX former_device_deleted ON former_device (deleted_ms);
CREATE INDEX repeat_window_until ON repeat_window (until_ms);
CREATE INDEX event_accepted ON event (accepted_ms);

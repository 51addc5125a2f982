-- What the guard against mass verdicts remembers, and what retention needs to delete in small steps.

-- The fleet's own measure, one row per platform (1 android, 2 ios, 3 web): answers of late for or against devices, and
-- what was found beyond the share allowed, in hundredths of a device. In the database, so that every instance and
-- every restart goes by it.
CREATE TABLE dead_share (
    platform smallint PRIMARY KEY,
    answered bigint   NOT NULL DEFAULT 0,
    against  bigint   NOT NULL DEFAULT 0,
    excess   bigint   NOT NULL DEFAULT 0
);
INSERT INTO dead_share (platform) VALUES (1), (2), (3);

-- Fan-outs that are gone for everybody, whose rows are still being deleted.
CREATE TABLE doomed (
    fanout_id bigint PRIMARY KEY
);

-- Who does the upkeep now; nobody else does until then.
CREATE TABLE upkeep (
    task     text   PRIMARY KEY,
    owner    uuid,
    until_ms bigint NOT NULL
);
INSERT INTO upkeep (task, until_ms) VALUES ('retention', 0);

CREATE INDEX IF NOT EXISTS fanout_parent ON fanout (parent) WHERE parent IS NOT NULL;
CREATE INDEX fanout_settled ON fanout (settled_ms) WHERE settled_ms IS NOT NULL;
CREATE INDEX former_device_deleted ON former_device (deleted_ms);
CREATE INDEX repeat_window_until ON repeat_window (until_ms);
CREATE INDEX event_accepted ON event (accepted_ms);

-- As in migrations/postgres/0004_derived.sql.

ALTER TABLE fanout ADD COLUMN source        INTEGER NOT NULL DEFAULT 0;
ALTER TABLE fanout ADD COLUMN family        INTEGER;
ALTER TABLE fanout ADD COLUMN root_event    TEXT;
ALTER TABLE fanout ADD COLUMN request_id    TEXT;
ALTER TABLE fanout ADD COLUMN hold_until_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE fanout ADD COLUMN superseded_by INTEGER;
ALTER TABLE fanout ADD COLUMN never_saw     INTEGER;
ALTER TABLE fanout ADD COLUMN max_attempts  INTEGER;
ALTER TABLE fanout ADD COLUMN paused        INTEGER NOT NULL DEFAULT 0;
ALTER TABLE fanout ADD COLUMN resumed       INTEGER NOT NULL DEFAULT 0;
CREATE INDEX fanout_family ON fanout (family) WHERE family IS NOT NULL;
CREATE INDEX fanout_parent ON fanout (parent) WHERE parent IS NOT NULL;
CREATE UNIQUE INDEX fanout_request ON fanout (parent, kind, request_id) WHERE request_id IS NOT NULL;
CREATE UNIQUE INDEX fanout_live_replay ON fanout (parent) WHERE kind = 2 AND settled_ms IS NULL;

CREATE TABLE repeat_window (
    meaning   BLOB    NOT NULL PRIMARY KEY,
    fanout_id INTEGER NOT NULL,
    until_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- As in migrations/postgres/0003_explain.sql: what explaining a device needs beside the spine.
-- created_ms and follows_ms of a new device are written with it: SQLite takes no changing default for an added column.

ALTER TABLE device ADD COLUMN created_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE device ADD COLUMN follows_ms INTEGER NOT NULL DEFAULT 0;
-- Known to be no later than now for the devices that are there.
UPDATE device SET follows_ms = CAST(unixepoch('subsec') * 1000 AS INTEGER);

-- A frozen chunk names a device by its key for ever; this says which device that was.
CREATE TABLE former_device (
    device_key INTEGER NOT NULL PRIMARY KEY,
    id         TEXT    NOT NULL,
    deleted_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX former_device_id ON former_device (id, deleted_ms);

CREATE TRIGGER device_deleted AFTER DELETE ON device BEGIN
    INSERT OR IGNORE INTO former_device (device_key, id, deleted_ms)
    VALUES (old.device_key, old.id, CAST(unixepoch('subsec') * 1000 AS INTEGER));
END;

-- What explaining a device needs beside the spine: when it came, when what it follows last changed, and which
-- devices are gone. Statements that insert devices need not know of it.

-- Known to be no later than now for the devices that are there; as a constant, so that the table is not rewritten.
DO $$
BEGIN
    EXECUTE format('ALTER TABLE device ADD COLUMN created_ms bigint NOT NULL DEFAULT 0,
                    ADD COLUMN follows_ms bigint NOT NULL DEFAULT %s', fanfare_now_ms());
END
$$;
ALTER TABLE device ALTER COLUMN created_ms SET DEFAULT fanfare_now_ms(),
                   ALTER COLUMN follows_ms SET DEFAULT fanfare_now_ms();

-- A frozen chunk names a device by its key for ever; this says which device that was.
CREATE TABLE former_device (
    device_key bigint PRIMARY KEY,
    id         text   NOT NULL,
    deleted_ms bigint NOT NULL
);
CREATE INDEX former_device_id ON former_device (id, deleted_ms);

CREATE FUNCTION fanfare_keep_former() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO former_device (device_key, id, deleted_ms)
    SELECT device_key, id, fanfare_now_ms() FROM gone ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER device_deleted AFTER DELETE ON device REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION fanfare_keep_former();

-- Fan-outs that follow from others: corrections, replays. And the window in which an identical event is the same news.
-- Builds from before this one leave every new column at its default, which means "an original, not held, not capped".

ALTER TABLE fanout
    ADD COLUMN source        smallint NOT NULL DEFAULT 0,   -- where its recipients come from
    ADD COLUMN family        bigint,                        -- the fan-out all of this chain go by; NULL = its own id
    ADD COLUMN root_event    text,                          -- the event whose message it replaces on the phone; NULL = its own
    ADD COLUMN request_id    text,                          -- what its caller called it
    ADD COLUMN hold_until_ms bigint   NOT NULL DEFAULT 0,   -- its freeze begins then
    ADD COLUMN superseded_by bigint,
    ADD COLUMN never_saw     bigint,                        -- of a correction: who was not sent what it corrects
    ADD COLUMN max_attempts  bigint,                        -- NULL = no cap
    ADD COLUMN paused        smallint NOT NULL DEFAULT 0,   -- why; 0 = it is not
    ADD COLUMN resumed       integer  NOT NULL DEFAULT 0;
CREATE INDEX fanout_family ON fanout (family) WHERE family IS NOT NULL;
CREATE INDEX fanout_parent ON fanout (parent) WHERE parent IS NOT NULL;
CREATE UNIQUE INDEX fanout_request ON fanout (parent, kind, request_id) WHERE request_id IS NOT NULL;
-- One replay of a fan-out at a time: the index decides who is first.
CREATE UNIQUE INDEX fanout_live_replay ON fanout (parent) WHERE kind = 2 AND settled_ms IS NULL;

-- An event that a correction names and that has not come yet has a row in `event` with an empty hash; its fan-out is
-- the correction's. The same unique key so decides which of the two was first.

-- `meaning` is a hash of what people would see and who would see it.
CREATE TABLE repeat_window (
    meaning   bytea  PRIMARY KEY,
    fanout_id bigint NOT NULL,
    until_ms  bigint NOT NULL
);

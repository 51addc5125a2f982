-- Sweeps: fan-outs of kind 3, whose recipients are devices after a key.

-- Share of dead devices, in per cent, that the one who asked for a sweep takes for true; NULL = the usual limit.
ALTER TABLE fanout ADD COLUMN accept_dead_percent INTEGER;
-- The device after which it began: where one begins again whose verdicts were withheld.
ALTER TABLE fanout ADD COLUMN swept_from INTEGER NOT NULL DEFAULT 0;

-- One at a time.
CREATE UNIQUE INDEX fanout_live_sweep ON fanout (kind) WHERE kind = 3 AND settled_ms IS NULL;

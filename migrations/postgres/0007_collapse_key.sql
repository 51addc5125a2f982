-- The key under which a fan-out's message lies on the phone. A correction, and a replay, go by that of the first message
-- of their chain, whatever their own type would make of it, and whatever became of the types since. NULL = as the type
-- makes it now, of the event in `root_event`: rows of builds from before this one, and sweeps.
ALTER TABLE fanout ADD COLUMN collapse_key text;

-- The last leap of dead devices of each platform, while nothing has disproved it: what readiness says of the guard, on every
-- instance and after every restart. JSON; NULL = its devices are judged.
ALTER TABLE dead_share ADD COLUMN leap text;

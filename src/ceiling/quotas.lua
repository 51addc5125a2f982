-- One request of a caller who may make a number of them per second, by theoretical arrival times (GCRA).
-- KEYS[1] the caller's time; ARGV[1] microseconds between two requests, ARGV[2] how far ahead the time may be;
-- ARGV[3] 1 = an instance counted the caller alone until now: what it had there is not to be had here once more.
-- Answers 0, or the microseconds until a request is allowed. Works on a replica set: the time is read, then written.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
local every, ahead = tonumber(ARGV[1]), tonumber(ARGV[2])
local due = tonumber(redis.call('GET', KEYS[1]) or now)
-- Nothing can be further ahead than a second and a request: the server's clock went back.
if due < now or due > now + 1000000 + every then due = now end
if ARGV[3] == '1' then due = math.max(due, now + ahead) end
if due - now > ahead then return math.ceil(due - now - ahead) end
redis.call('SET', KEYS[1], string.format('%.0f', due + every), 'PX', 2000 + math.ceil(every / 1000))
return 0

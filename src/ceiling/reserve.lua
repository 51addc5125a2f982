-- Reserves grants for the whole fleet: the arithmetic of bucket.rs and pace.rs, where all callers compete for it.
--
-- KEYS[1]  one lane of one project, e.g. {fanfare:my-project}:fcm.send; a hash of
--            due    when the next grant is due
--            pause  nothing before this time: the provider said so
--            pace   share of the ceiling applied at `cut`, in millionths
--            cut    when the pace was last lowered
--            seen   this server's clock at the last call
--          all times in microseconds of this server's clock, counted from EPOCH.
-- ARGV     1 every          distance of two grants at the full ceiling, microseconds, a real number
--          2 burst          grants that may be due in the past, at least 1
--          3 want           grants asked for; 0 only exchanges what is known
--          4 ahead          how far in advance grants are given out, microseconds
--          5 longest        longest pause there is, microseconds
--          6 recovery       millionths of the ceiling regained per second
--          7 own_pause      microseconds of pause the caller remembers; 0 = none
--          8 own_pace       the caller's own pace, millionths; FULL = the ceiling
--          9 news           1 = the provider has told the caller so since the last call, 0 = it is a memory
--
-- Answer   { n, wait, every, pause, pace, cut, now }, integers: n grants, the first `wait` microseconds from now
--          (negative after a quiet time, when up to `burst` are due already), then one per `every` nanoseconds; or
--          n = 0 and "ask again in `wait`". A Lua number loses its fraction on the way
--          out, so every value is rounded here, to the side that is never early.

local EPOCH = 1700000000 -- keeps times small enough that a double still holds 1/64 of a microsecond
local FULL = 1000000

-- A number somebody else wrote: nil unless it is one, and in a sensible range. NaN is not equal to itself.
local function number(text)
  local x = tonumber(text or '')
  if x and x == x and x >= 0 and x < 1e15 then return x end
end

local every, burst, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local ahead, longest, recovery = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local own_pause, own_pace, news = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9] == '1'

-- One clock for all callers: with their own, the one that is behind would take time back and spend it again.
local time = redis.call('TIME')
local now = (tonumber(time[1]) - EPOCH) * 1000000 + tonumber(time[2])
local horizon = now + ahead

local state = redis.call('HMGET', KEYS[1], 'due', 'pause', 'pace', 'cut', 'seen')
local due, pause = number(state[1]), number(state[2]) or 0
local pace, cut = number(state[3]) or FULL, number(state[4]) or 0

-- This server's clock may have gone back, by a step or because another server took over: every time goes back with it,
-- as if none had passed. Else a pause of a minute would last as long as the step, and that is up to the longest pause.
local back = math.max(0, (number(state[5]) or now) - now)
if due then due = due - back end
pause, cut = math.max(0, pause - back), math.max(0, cut - back)
-- What no call can have left behind: a cut ahead, a pause beyond the longest one. It is dropped, and the callers' own
-- memories still hold what was true in it.
if cut > now then cut = now end
if pause > now + longest then pause = 0 end
-- A pause that is over is put away, for a clock gone back would bring it to life again. The pace grows from its end.
if pause > 0 and pause <= now then cut, pause = math.max(cut, pause), 0 end
-- The pace of this moment; full again, the cut is put away too. 1 keeps a foolish value from dividing by nothing.
local current = pace
if pause == 0 then current = pace + recovery * (now - cut) / 1000000 end
if current >= FULL then current, pace, cut = FULL, FULL, 0 end
current = math.max(1, current)
-- What the caller remembers. This is how a flush or an empty restart forgets nothing. A memory came from here and is
-- a round trip old, so it must differ by more than that to count: else every call would stretch the pause a little,
-- for ever. News count to the microsecond. The lower pace wins, so two hit by the same throttle halve it once.
local late, lower = 100000, 20000
if news then late, lower = 0, 0 end
if own_pause > math.max(0, pause - now) + late then pause = now + math.min(own_pause, longest) end
if own_pace < current - lower then current, pace, cut = own_pace, own_pace, now end

local distance = every * FULL / current
-- A missing key is unknown history: start empty, after everything that may still be reserved. The same for a due time
-- no call can have left behind: at the lowest pace, 20 distances and the reserve ahead.
if not due or due > horizon + 20 * every + distance then due = horizon end
-- No grant before the pause is over, and no more credit for a quiet time than the burst.
local from = math.max(due, pause, now - (burst - 1) * distance)
local n, wait = 0, 0
if from <= horizon then
  n = math.min(want, math.floor((horizon - from) / distance) + 1)
  if n > 0 then
    wait = math.ceil(from - now)
    due = from + n * distance
  end
else
  wait = math.ceil(from - horizon)
end

-- Written on the refusal path too: else a cold key would be cold again for the next caller, and a pause told by a call
-- that gets nothing would be lost.
redis.call('HSET', KEYS[1], 'due', due, 'pause', pause, 'pace', pace, 'cut', cut, 'seen', now)
-- Twice the longest pause: the key outlives every gap between two calls that something depends on.
redis.call('PEXPIRE', KEYS[1], math.ceil(2 * longest / 1000) + 60000)

return { n, wait, math.ceil(distance * 1000), math.ceil(pause), math.floor(pace), math.floor(cut), now }

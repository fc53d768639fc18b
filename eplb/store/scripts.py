"""The Lua scripts of the store: each one is the only way to do what it does, and runs as one step.

They use nothing beyond Redis 6.2, so that any Redis or Valkey runs them.
"""

from __future__ import annotations

_READ = """
local function seen_term(key)
  local term = tonumber(redis.call('HGET', key, 'term') or '')
  if term and term >= 0 and term < 9007199254740992 and term % 1 == 0 then return term end
  return 0
end
local function holder(key)
  return string.match(redis.call('GET', key) or '', '^(%d+):(.+)$')
end
"""
"""What other hands may have spoiled: a term that is no whole number below 2^53 counts as none, a lease that is not ``term:owner`` as free."""

FENCED_WRITE = (
    _READ
    + """
local seen = seen_term(KEYS[1])
local term = tonumber(ARGV[1])
if term >= 0 then
  local leads = tonumber(holder(KEYS[3]) or ARGV[1])
  if term < seen or term ~= leads then return math.max(seen, leads) end
end
if term > seen then redis.call('HSET', KEYS[1], 'term', ARGV[1]) end
local first = 2
while first <= #ARGV do
  local last = math.min(first + 999, #ARGV)
  redis.call('HSET', KEYS[2], unpack(ARGV, first, last))
  first = last + 1
end
return -1
"""
)
"""Write fields of a hash under a term.

KEYS: 1 desired (its field ``term`` is the fence), 2 the hash to write, 3 lease. ARGV: 1 the writer's term, or -1 for an
operator's switch that holds under any term; then field, value, field, value, …
Returns -1 when written, or the term that refuses it: a newer one that the store has seen, or the one that the lease is held
under. Only the lease tells a leader that slept through the loss of all keys, because its term can be above the new one's.
"""

READ_HASH = """
local count = redis.call('HLEN', ARGV[1])
if count > tonumber(ARGV[2]) then return count end
local fields, large = {}, {}
for _, name in ipairs(redis.call('HKEYS', ARGV[1])) do
  if #name > 256 then
    large[#large + 1] = string.sub(name, 1, 32)
  elseif redis.call('HSTRLEN', ARGV[1], name) > tonumber(ARGV[3]) then
    large[#large + 1] = name
  else
    fields[#fields + 1] = name
    fields[#fields + 1] = redis.call('HGET', ARGV[1], name)
  end
end
return {fields, large}
"""
"""Read a hash whose writers are not trusted.

KEYS: 1 desired, which has the same hash tag. ARGV: 1 the hash to read, which is no key of the script because a script may write
its keys, and the daemon may not write ``live``; 2 most fields, 3 most bytes of a value. Returns field, value, ... and the names
of fields that are too large; or the number of fields, where they are too many and none is read.
"""

LEASE_ACQUIRE = (
    _READ
    + """
local _, owner = holder(KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
local term = string.format('%d', math.max(seen_term(KEYS[2]), tonumber(ARGV[3])) + 1)
redis.call('SET', KEYS[1], term .. ':' .. ARGV[1], 'PX', ARGV[2])
redis.call('HSET', KEYS[2], 'term', term)
return tonumber(term)
"""
)
"""Take the lease if nobody else holds it, and raise the fence at once.

KEYS: 1 lease, 2 desired. ARGV: 1 owner, 2 time to live in ms, 3 floor of the term. Returns the new term, 0 = held by another.
"""

LEASE_RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
"""Prolong a lease that is still ours. KEYS: 1 lease. ARGV: 1 ``term:owner``, 2 time to live in ms. Returns 1, 0 = lost."""

LEASE_RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
"""Give back a lease that is still ours. KEYS: 1 lease. ARGV: 1 ``term:owner``. Returns 1, 0 = it was not ours."""

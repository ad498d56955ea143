-- The wrk script of all loads. Its argument is the plan that bench/load.ts writes, one value per line: method,
-- authorization, a prefix that makes names unique, a body with {n} for a number, and the paths to request in turn.
local requests = {}
local turn = 0
local body, prefix

function init(args)
  local lines = {}
  for line in io.lines(args[1]) do lines[#lines + 1] = line end
  wrk.method = lines[1]
  wrk.headers["Authorization"] = lines[2]
  prefix, body = lines[3], lines[4]
  if body ~= "" then wrk.headers["Content-Type"] = "application/json" end
  for i = 5, #lines do requests[#requests + 1] = body == "" and wrk.format(nil, lines[i]) or lines[i] end
end

function request()
  turn = turn + 1
  local next = requests[(turn - 1) % #requests + 1]
  if body == "" then return next end
  return wrk.format(nil, next, nil, (body:gsub("{n}", prefix .. turn)))
end

function done(summary)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  local line = '\n{"requests":%d,"seconds":%f,"failed":%d}\n'
  io.write(string.format(line, summary.requests, summary.duration / 1e6, failed))
end

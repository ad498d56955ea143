-- What a sandbox and its services are to become is in their rows, so that whoever has the turn completes it.

alter table sandbox
  add column problem text; -- why its box does not start; null while it does

alter table service
  add column revision int not null default 0, -- counts what starts it anew: other definitions and restarts
  add column stop_ms int, -- the time that the last stop gave it to end; null for the default
  add column problem text; -- why it could not be changed to what it is to be; null once it could

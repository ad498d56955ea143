-- What a sandbox is made from instead of the programs of the host: the reference, the digest of what was pulled, what it
-- says about its commands, and why it could not be pulled.
alter table sandbox add image jsonb;

-- When a service was last seen ready, of those whose readiness the edge cannot ask for itself.
alter table service add ready_at timestamptz;
drop trigger service_route on service;
create trigger service_route after insert or delete or update of http_port, wanted, health, ready_at on service
  for each row execute function tell_route();

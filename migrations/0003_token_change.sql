-- Connections that were opened with a token are closed when it is no longer valid. The control plane listens to the first
-- channel, the edge to the second.
create function notify_token_change() returns trigger language plpgsql as $$
begin
  perform pg_notify('token_change', ''), pg_notify('route', 'token');
  return null;
end $$;
create trigger token_change after update of hash, expires_at, revoked_at or delete on token
  for each statement execute function notify_token_change();

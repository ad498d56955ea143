-- Connections that were opened with a token are closed when it is no longer valid. The control plane listens to the first
-- channel, the edge to the second.
create function notify_token_change() returns trigger language plpgsql as $$
begin
  perform pg_notify('token_change', ''), pg_notify('route', 'token');
  return null;
end $$;
create trigger token_change after update of hash, expires_at, revoked_at or delete on token
  for each statement execute function notify_token_change();

-- `*.example.com` covers `a.example.com`, so both belong to the same organization, whichever was claimed first. Names that
-- overlap have the same parent; the lock on it makes concurrent claims wait for each other.
create function host_parent(hostname text) returns text language sql immutable
  return substr(hostname, strpos(hostname, '.') + 1);
create index host_parent on host (host_parent(hostname));

create function refuse_overlapping_host() returns trigger language plpgsql as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('host ' || host_parent(new.hostname), 0));
  if exists (
    select 1 from host join app on app.id = host.app_id
    where host_parent(host.hostname) = host_parent(new.hostname)
      and starts_with(host.hostname, '*.') <> starts_with(new.hostname, '*.')
      and app.org_id <> (select org_id from app where id = new.app_id)
  ) then
    raise exception 'host name % overlaps one of another organization', new.hostname
      using errcode = 'unique_violation', constraint = 'host_overlap';
  end if;
  return new;
end $$;
create trigger host_overlap before insert or update of hostname, app_id on host
  for each row execute function refuse_overlapping_host();

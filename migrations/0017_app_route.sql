-- What the edge routes apps by is told as it is committed, named by the app.
create function tell_app_route() returns trigger language plpgsql as $$
declare
  changed jsonb := coalesce(to_jsonb(new), to_jsonb(old));
  app_id text := case tg_table_name
    when 'app' then changed ->> 'id'
    when 'machine_check' then (select machine.app_id from machine where id = changed ->> 'machine_id')
    else changed ->> 'app_id' end;
begin
  -- The checks of a machine that goes away go after it.
  if app_id is not null then perform pg_notify('route', 'app ' || app_id); end if;
  return null;
end $$;

-- A new app has neither addresses nor machines.
create trigger app_route after update of name, state, enable_subdomains on app
  for each row execute function tell_app_route();
create trigger machine_route after insert or delete or update of state, config, cordoned, slot, instance_id on machine
  for each row execute function tell_app_route();
create trigger machine_check_route after insert or delete or update of status on machine_check
  for each row execute function tell_app_route();
create trigger ip_route after insert or delete or update on ip
  for each row execute function tell_app_route();

-- Host names of apps beside their own, and what proves them over TLS: given by their owners, made by the platform's
-- authority, or both.
create table host (
  hostname    text collate "C" primary key,
  app_id      text not null references app,
  created_at  timestamptz not null default now()
);
create index host_app on host (app_id, hostname);
create trigger host_route after insert or delete or update on host
  for each row execute function tell_app_route();

create table certificate (
  hostname     text collate "C" not null references host on delete cascade,
  app_id       text not null,
  source       text not null check (source in ('custom', 'authority')),
  fullchain    text not null,
  private_key  bytea not null, -- encrypted, with a key that the edge has as well
  created_at   timestamptz not null default now(),
  expires_at   timestamptz not null,
  primary key (hostname, source)
);
create trigger certificate_route after insert or delete or update on certificate
  for each row execute function tell_app_route();

-- The most that each worker of the edge had under way at a machine of late: whoever stops idle machines adds them up.
create unlogged table machine_load (
  machine_id  text not null references machine on delete cascade,
  worker      text not null,
  load        int not null,
  at          timestamptz not null default now(),
  primary key (machine_id, worker)
);

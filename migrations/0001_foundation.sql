create table org (
  id          text primary key,
  numeric_id  int generated always as identity unique,
  slug        text collate "C" not null unique,
  name        text not null,
  created_at  timestamptz not null default now()
);

create table token (
  id          text primary key,
  hash        bytea not null unique, -- SHA-256; the token itself is shown once and never stored
  kind        text not null check (kind in ('root', 'org', 'read', 'sandbox')),
  org_id      text references org,
  sandbox     text,
  name        text not null default '',
  created_at  timestamptz not null default now(),
  expires_at  timestamptz,
  revoked_at  timestamptz,
  check ((org_id is null) = (kind = 'root')),
  check ((sandbox is not null) = (kind = 'sandbox'))
);
create index token_org on token (org_id, created_at);

create table app (
  id                text primary key,
  numeric_id        int generated always as identity unique,
  org_id            text not null references org,
  name              text collate "C" not null,
  network           text not null,
  enable_subdomains boolean not null,
  state             text not null default 'active',
  state_since       timestamptz not null default now(),
  created_at        timestamptz not null default now()
);
-- A name is free again as soon as its app is being deleted.
-- The operator class keeps this index for equality: without it the planner walks it for the pages of an organization,
-- past the apps of all others.
create unique index app_name on app (name text_pattern_ops) where state = 'active';
create index app_org_name on app (org_id, name) where state = 'active';

create table machine (
  id          text primary key,
  app_id      text not null references app,
  state       text not null,
  created_at  timestamptz not null default now()
);
create index machine_app on machine (app_id);

create table volume (
  id          text primary key,
  app_id      text not null references app,
  created_at  timestamptz not null default now()
);
create index volume_app on volume (app_id);

-- The number of active apps of an organization, so that a page of the list costs the same with a hundred apps and with
-- a hundred thousand. Each server process counts on a row of its own: creations of one organization do not wait for
-- each other.
create table app_count (
  org_id  text not null references org,
  shard   int not null,
  apps    bigint not null,
  primary key (org_id, shard)
) with (fillfactor = 50);

create function count_app() returns trigger language plpgsql as $$
declare
  before int := case when tg_op <> 'INSERT' and old.state = 'active' then 1 else 0 end;
  after  int := case when tg_op <> 'DELETE' and new.state = 'active' then 1 else 0 end;
begin
  if before <> after then
    update app_count set apps = apps + after - before
      where org_id = coalesce(new.org_id, old.org_id) and shard = pg_backend_pid() % 32;
    if not found then
      insert into app_count as c (org_id, shard, apps)
        values (coalesce(new.org_id, old.org_id), pg_backend_pid() % 32, after - before)
        on conflict (org_id, shard) do update set apps = c.apps + excluded.apps;
    end if;
  end if;
  return null;
end $$;
create trigger app_counted after insert or delete or update of state on app for each row execute function count_app();

-- Which resource to look at next, and when. No payload: a step reads the resource itself, so a late, repeated or lost
-- wake-up can never act on old facts.
create table work (
  kind         text not null,
  resource_id  text not null,
  run_at       timestamptz not null default now(),
  wakes        bigint not null default 1, -- a finishing worker compares this to see whether it was woken meanwhile
  attempts     int not null default 0,
  token        uuid,                      -- names one lease; a worker that overran finds its token gone
  leased_until timestamptz,
  note         text not null default '',  -- what the last look said; shown to the user
  last_error   text,
  primary key (kind, resource_id)
) with (fillfactor = 50);
create index work_due on work (run_at);

create table event (
  id          bigint generated always as identity primary key,
  at          timestamptz not null default now(),
  kind        text not null,
  resource_id text not null,
  from_state  text not null,
  to_state    text not null,
  event       text not null,
  note        text not null default ''
);
create index event_resource on event (kind, resource_id, id);

-- The first answer to a request that carried an Idempotency-Key, written in the transaction of the change it reports.
create table idempotency (
  token_id    text not null references token,
  path        text not null,
  key         text not null,
  fingerprint bytea not null, -- SHA-256 of the query and the body: the same key with another request is refused
  status      int not null,
  answer      bytea not null, -- encrypted, because answers hold passwords and tokens
  created_at  timestamptz not null default now(),
  primary key (token_id, path, key)
);
create index idempotency_age on idempotency (created_at);

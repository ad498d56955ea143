create table sandbox (
  id              text primary key,
  org_id          text not null references org,
  name            text collate "C" not null,
  slot            int check (slot between 1 and 1023), -- of uids and addresses; null when it has been removed
  state           text not null default 'cold',
  state_since     timestamptz not null default now(),
  url_auth        text not null check (url_auth in ('sprite', 'public')),
  private_access  text not null check (private_access in ('admins', 'org_users')),
  labels          text[] not null,
  environment     jsonb not null, -- variables of every command and service
  memory_mb       int not null,
  cpus            double precision not null,
  storage_gb      int not null,
  region          text not null,
  network_policy  jsonb not null default '{"rules":[]}',
  privileges      jsonb,
  resources       jsonb,
  checkpoints     int not null default 0, -- the number of the last one, so that a number is never given twice
  source_id       text, -- the checkpoint that its filesystem came from
  used_bytes      bigint, -- by what was written in it, when it was last measured
  measured_at     timestamptz,
  held_until      timestamptz, -- until then it is being stopped and started, and whoever wants to use it waits
  created_at      timestamptz not null default now(),
  updated_at      timestamptz not null default now(),
  last_running_at timestamptz
);
-- The name is part of the URL, so it is one namespace. It is free again as soon as its sandbox is being deleted.
create unique index sandbox_name on sandbox (name text_pattern_ops) where state in ('cold', 'running');
create index sandbox_org_name on sandbox (org_id, name) where state in ('cold', 'running');
-- Whoever takes the lowest free one looks only at those in use, however many sandboxes there have been.
create unique index sandbox_slot on sandbox (slot) where slot is not null;

create table service (
  sandbox_id  text not null references sandbox,
  name        text collate "C" not null,
  definition  json not null, -- cmd, args, needs, env, dir; json and not jsonb because it is only ever read whole
  http_port   int check (http_port between 1 and 65535),
  health      json,
  wanted      boolean not null default true, -- false once a caller stopped it: it stays so over a restart
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  primary key (sandbox_id, name)
);
create unique index service_http_port on service (sandbox_id) where http_port is not null;

create table checkpoint (
  sandbox_id  text not null references sandbox,
  id          text collate "C" not null, -- v1, v2, …, or auto-1, auto-2, …
  is_auto     boolean not null,
  comment     text not null,
  source_id   text, -- the checkpoint that the filesystem came from
  restores    text, -- of an automatic one: the checkpoint that replaces what is kept here
  state       text not null check (state in ('making', 'ready', 'failed', 'removing')),
  failure     text, -- a sentence, for whoever waits for it
  number      bigint generated always as identity, -- in the order in which they were asked for
  created_at  timestamptz not null default now(),
  primary key (sandbox_id, id)
);
-- One at a time is made of a sandbox: a copy slows down everything in it.
create unique index checkpoint_making on checkpoint (sandbox_id) where state = 'making';

-- Whoever watches sandboxes hears of a change when it is committed, and reads the row.
create function tell_of_sandbox() returns trigger language plpgsql as $$
begin
  perform pg_notify('sandbox_change', 'sandbox ' || new.id);
  return null;
end $$;
create trigger sandbox_told after insert or update of state, updated_at on sandbox
  for each row execute function tell_of_sandbox();

create function tell_of_checkpoint() returns trigger language plpgsql as $$
begin
  perform pg_notify('sandbox_change', 'checkpoint ' || coalesce(new.sandbox_id, old.sandbox_id));
  return null;
end $$;
create trigger checkpoint_told after insert or update of state or delete on checkpoint
  for each row execute function tell_of_checkpoint();

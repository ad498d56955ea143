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
  network_policy  jsonb not null default '{"rules":[]}',
  privileges      jsonb,
  resources       jsonb,
  checkpoints     int not null default 0, -- the number of the last one, so that a number is never given twice
  created_at      timestamptz not null default now(),
  updated_at      timestamptz not null default now(),
  last_running_at timestamptz
);
-- The name is part of the URL, so it is one namespace. It is free again as soon as its sandbox is being deleted.
create unique index sandbox_name on sandbox (name text_pattern_ops) where state in ('cold', 'running');
create index sandbox_org_name on sandbox (org_id, name) where state in ('cold', 'running');
create unique index sandbox_slot on sandbox (slot);

create table service (
  sandbox_id  text not null references sandbox,
  name        text collate "C" not null,
  cmd         text not null,
  args        text[] not null,
  needs       text[] not null,
  http_port   int check (http_port between 1 and 65535),
  env         jsonb not null,
  dir         text,
  health      jsonb,
  wanted      boolean not null default true, -- false once a caller stopped it: it stays so over a restart
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  primary key (sandbox_id, name)
);
create unique index service_http_port on service (sandbox_id) where http_port is not null;

create table checkpoint (
  sandbox_id  text not null references sandbox,
  id          text collate "C" not null, -- v1, v2, …, or auto-…
  is_auto     boolean not null,
  comment     text not null default '',
  source_id   text, -- the checkpoint that the filesystem came from
  state       text not null check (state in ('making', 'ready')),
  bytes       bigint,
  created_at  timestamptz not null default now(),
  primary key (sandbox_id, id)
);

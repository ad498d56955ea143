create table cluster (
  id                        text primary key,
  org_id                    text not null references org,
  name                      text collate "C" not null,
  state                     text not null default 'creating',
  state_since               timestamptz not null default now(),
  progress_at               timestamptz,          -- when a long state last moved; its deadline counts from here
  plan                      text not null,
  pg_major                  text not null check (pg_major in ('16', '17')),
  disk_size_gb              int not null check (disk_size_gb > 0),
  replicas                  int not null default 0,
  region                    text not null,
  postgis_enabled           boolean not null,
  pool_mode                 text not null check (pool_mode in ('session', 'transaction')),
  created_at                timestamptz not null default now(),
  deleted_at                timestamptz,
  toolchain                 jsonb,                -- the PostgreSQL installation it was made with
  uid                       int,
  health                    text not null default 'ok',
  health_reason             text not null default '',
  health_since              timestamptz not null default now(),
  storage_provisioned_bytes bigint,
  storage_used_bytes        bigint,
  storage_measured_at       timestamptz,
  quota_checked_at          timestamptz
);
-- A name is free again once its cluster is deleted.
create unique index cluster_name on cluster (org_id, name) where state <> 'deleted';
create unique index cluster_uid on cluster (uid) where state <> 'deleted';
create index cluster_org on cluster (org_id, created_at, id);

-- Every port that was handed out, so that none is handed out twice.
create table cluster_port (
  port        int primary key,
  cluster_id  text not null references cluster,
  purpose     text not null check (purpose in ('direct', 'pooler')),
  unique (cluster_id, purpose)
);

-- Users the platform manages, with the password it can show again.
create table cluster_user (
  cluster_id  text not null references cluster,
  username    text not null,
  role        text not null check (role in ('schema_admin', 'writer', 'reader')),
  password    bytea not null, -- encrypted with the platform's key
  created_at  timestamptz not null default now(),
  primary key (cluster_id, username)
);

create table attachment (
  cluster_id  text not null references cluster,
  app_id      text not null references app,
  attached_at timestamptz not null default now(),
  primary key (cluster_id, app_id)
);
create index attachment_app on attachment (app_id);

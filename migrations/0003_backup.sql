-- The write-ahead log of a cluster is kept in epochs. An epoch is one unbroken stretch; a lost slot or missing log ends
-- it, and what lies between two epochs cannot be restored.
create table archive (
  cluster_id  text not null references cluster,
  epoch       int not null,
  slot        text not null,
  timeline    int not null,
  started_at  timestamptz not null default now(),
  start_lsn   pg_lsn not null,
  ended_at    timestamptz,
  -- The newest sample whose log the receiver has flushed: everything stamped up to latest_at lies before latest_lsn.
  latest_at   timestamptz,
  latest_lsn  pg_lsn,
  -- Before its first own backup a restored cluster stands on its parent's backup and log: {backup, pieces, at}.
  base        jsonb,
  primary key (cluster_id, epoch)
);
create unique index archive_current on archive (cluster_id) where ended_at is null;

create table backup (
  id            text primary key,
  cluster_id    text not null references cluster,
  label         text not null,
  state         text not null default 'queued',
  state_since   timestamptz not null default now(),
  progress_at   timestamptz,
  type          text not null default 'full',
  epoch         int,
  timeline      int,
  start_lsn     pg_lsn,
  stop_lsn      pg_lsn,
  created_at    timestamptz not null default now(),
  started_at    timestamptz,
  stopped_at    timestamptz, -- the clock of the source when the backup ended; the earliest time it can be restored to
  finished_at   timestamptz,
  size_bytes    bigint,
  pinned        boolean not null default false,
  verified_at   timestamptz,
  damage        text,        -- what the last scrub found wrong
  unique (cluster_id, label)
);
-- One at a time per cluster.
create unique index backup_running on backup (cluster_id) where state in ('queued', 'running');
create index backup_cluster on backup (cluster_id, stopped_at);

-- One restore per restored cluster.
create table restore (
  cluster_id        text primary key references cluster,
  source_cluster_id text not null references cluster,
  backup_id         text,                   -- as asked for
  pitr_time         timestamptz,            -- as asked for
  plan              jsonb,                  -- backup, log pieces, recovery target; null until it is resolved
  phase             text not null default 'waiting',
  bytes_done        bigint not null default 0,
  bytes_total       bigint,
  replayed_until    timestamptz,
  verified_at       timestamptz,
  purpose           text not null default 'restore' check (purpose in ('restore', 'fork', 'undelete', 'drill'))
);
create index restore_source on restore (source_cluster_id);

-- What must not be removed, and for whom: a restore that runs, or a restored cluster without a backup of its own.
create table pin (
  holder_id   text not null references cluster,
  cluster_id  text not null,
  label       text not null,
  epoch       int not null,
  from_lsn    pg_lsn not null,
  primary key (holder_id, cluster_id, label, epoch)
);
create index pin_cluster on pin (cluster_id);

-- A sample a minute, so that drills and damaged archives can go back to a time whose place in the log is known.
create table sample (
  cluster_id  text not null references cluster,
  epoch       int not null,
  at          timestamptz not null,
  lsn         pg_lsn not null,
  primary key (cluster_id, epoch, at)
);

alter table cluster
  add column synchronous_archive boolean not null default false,
  add column drill_query text,
  add column scratch boolean not null default false, -- made for a drill: nobody sees it or connects to it
  add column retention_at timestamptz;

drop index cluster_name;
create unique index cluster_name on cluster (org_id, name) where state not in ('deleted', 'purged');
drop index cluster_uid;
create unique index cluster_uid on cluster (uid) where state not in ('deleted', 'purged');

-- A restore of a random moment into a scratch cluster that is looked at closely and thrown away.
create table drill (
  id           text primary key,
  cluster_id   text not null references cluster,
  state        text not null default 'queued',
  state_since  timestamptz not null default now(),
  progress_at  timestamptz,
  created_at   timestamptz not null default now(),
  started_at   timestamptz,
  target       timestamptz,      -- the moment that is restored
  scratch_id   text,
  finished_at  timestamptz,
  seconds      double precision, -- from leaving the queue to the end
  result       text,             -- 'ok' or 'failed: …'
  answer       text              -- of the owner's query
);
create index drill_cluster on drill (cluster_id, created_at);
-- One at a time per cluster, and one at a time on this machine.
create unique index drill_active on drill (cluster_id) where state <> 'done';
create unique index drill_running on drill ((true)) where state in ('restoring', 'checking', 'cleaning');

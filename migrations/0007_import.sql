-- Imports of databases from other PostgreSQL servers.
create table import (
  id           text primary key,
  cluster_id   text not null references cluster,
  state        text not null default 'checking',
  state_since  timestamptz not null default now(),
  progress_at  timestamptz,
  created_at   timestamptz not null default now(),
  finished_at  timestamptz,
  source       bytea,            -- encrypted connection URL; null once nothing has to be done at the source any more
  source_name  text not null,    -- without the password
  database     text not null,    -- the database that is replaced when the import is done
  jobs         int not null,
  live         boolean not null,
  addresses    text[],           -- of the source, resolved and checked once
  extensions   jsonb,            -- of the source
  warnings     text[] not null default '{}',
  tables_done  int not null default 0,
  tables_total int,
  bytes_done   bigint not null default 0,
  bytes_total  bigint,
  table_name   text,             -- the table that was started last
  lag_bytes    bigint,
  lag_seconds  double precision,
  transaction  text,             -- of a cut-over: the last transaction of the source, to see whether it still writes
  failure      text
);
create index import_cluster on import (cluster_id, created_at);
-- One per cluster.
create unique index import_active on import (cluster_id) where state not in ('done', 'failed', 'canceled');

-- Whether the server may run subscriptions, which a live import needs.
alter table cluster add column subscribes boolean not null default false;

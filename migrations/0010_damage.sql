-- Archived WAL that is missing or cannot be replayed. Damage of a backup is in backup.damage.
create table damage (
  id          bigint generated always as identity primary key,
  cluster_id  text not null references cluster,
  epoch       int not null,
  timeline    int not null,
  from_lsn    pg_lsn not null,
  to_lsn      pg_lsn not null,
  kind        text not null check (kind in ('missing', 'damaged')),
  reason      text not null,
  found_at    timestamptz not null default now(),
  unique (cluster_id, epoch, timeline, from_lsn, to_lsn)
);

-- A recovery rebuilds a cluster in place from its own archive.
alter table restore drop constraint restore_purpose_check;
alter table restore add constraint restore_purpose_check
  check (purpose in ('restore', 'fork', 'undelete', 'drill', 'recover'));
alter table restore
  add column aside text,       -- where the data directory is moved to; null to discard what an earlier attempt left
  add column swapped boolean not null default false,     -- the data directory was moved there
  add column new_epoch int,    -- the archive epoch that starts after the recovery
  add column failure text;     -- why a recovery changed nothing

-- When a scrub last read it, whatever it found. Scrubs rotate between clusters by it.
alter table backup add column scrub_ended_at timestamptz;

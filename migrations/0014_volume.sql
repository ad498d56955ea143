alter table volume
  add name                text collate "C" not null,
  add region              text not null,
  add size_gb             int not null,
  add state               text not null default 'creating',
  add state_since         timestamptz not null default now(),
  add snapshot_retention  int not null, -- days
  add auto_backup         boolean not null,
  add source_volume_id    text, -- what it was copied from when it was made
  add source_snapshot_id  text,
  add machine_id          text references machine on delete set null, -- what it is attached to
  add detached_at         timestamptz,
  add failure             text; -- a sentence
create index volume_machine on volume (machine_id) where machine_id is not null;

create table snapshot (
  id              text primary key,
  volume_id       text not null references volume on delete cascade,
  state           text not null default 'creating',
  state_since     timestamptz not null default now(),
  size_bytes      bigint, -- null until it is made
  volume_bytes    bigint not null,
  retention_days  int not null,
  created_at      timestamptz not null default now(),
  failure         text
);
create index snapshot_volume on snapshot (volume_id, created_at);
-- One at a time: whoever writes waits meanwhile.
create unique index snapshot_under_way on snapshot (volume_id) where state = 'creating';

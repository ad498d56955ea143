-- Scrubs verify the WAL that follows a backup too: the position that the current one has reached in it.
alter table backup add column scrub_lsn pg_lsn;

-- Damaged backups and WAL are looked at again, because an intact copy may have been put back. A damaged backup is verified
-- again at recheck_at; never while it is missing, and at no time of its own if the damage is that of the WAL it needs.
alter table backup add column recheck_at timestamptz;
update backup set recheck_at = now()
  where damage is not null and damage not like 'the WAL it needs cannot be used:%';
alter table damage add column checked_at timestamptz not null default now();

-- What a hole took from a stretch, so that it can be given back: the end of the stretch, or the whole rest of it, which
-- then is a stretch of its own that continues this one.
alter table stretch
  add column cut_at timestamptz,
  add column cut_lsn pg_lsn,
  add column cut_until timestamptz,
  add column continues boolean not null default false;

-- When minor upgrades begin by themselves, such as `sun 03:00` in UTC; null for never.
alter table cluster add column maintenance_window text
  check (maintenance_window ~ '^(sun|mon|tue|wed|thu|fri|sat) [0-2][0-9]:[0-5][0-9]$');

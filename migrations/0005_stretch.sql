-- Times become positions in the WAL: stretches, in which the clock of a cluster ran evenly and no WAL is missing.

-- A part of an epoch. A new one begins where the clock of the server was changed, and after missing WAL. A time can be
-- restored if it lies between earliest_at and latest_at of a stretch and no other one went through it.
create table stretch (
  id             bigint generated always as identity primary key,
  cluster_id     text not null,
  epoch          int not null,
  from_lsn       pg_lsn not null,
  from_at        timestamptz, -- the server's clock at from_lsn; null if only the end of a backup tells a time
  -- The earliest and the latest time that the server's clock can have shown; null while it goes on.
  begun_at       timestamptz not null default now(),
  until_at       timestamptz,
  -- The newest sample whose WAL is archived: every commit up to latest_at is before latest_lsn.
  latest_at      timestamptz,
  latest_lsn     pg_lsn,
  ended          boolean not null default false,
  after_hole     boolean not null default false, -- backups before it cannot be used, because WAL before it is missing
  clock_step     interval, -- by how much the clock was changed at its beginning
  clock_offset   interval not null default '0', -- the server's clock minus that of the platform, if they differ
  noticed_at     timestamptz not null default now(),
  earliest_at    timestamptz, -- the first restorable time; null while there is no backup
  foreign key (cluster_id, epoch) references archive on delete cascade
);
create unique index stretch_current on stretch (cluster_id) where not ended;
create index stretch_epoch on stretch (cluster_id, epoch, from_lsn, id);

insert into stretch (cluster_id, epoch, from_lsn, from_at, begun_at, latest_at, latest_lsn, ended)
  select cluster_id, epoch, start_lsn, (base ->> 'at')::timestamptz, started_at, latest_at, latest_lsn, ended_at is not null
  from archive order by cluster_id, epoch;

-- begin_lsn was the position of the next record when the clock was `at`: everything before it was written by then.
alter table sample add column stretch_id bigint, add column begin_lsn pg_lsn;
update sample set begin_lsn = earlier.lsn
  from (select cluster_id, epoch, at, lag(lsn) over (partition by cluster_id, epoch order by at) as lsn from sample) earlier
  where sample.cluster_id = earlier.cluster_id and sample.epoch = earlier.epoch and sample.at = earlier.at;
update sample set stretch_id = stretch.id from stretch
  where stretch.cluster_id = sample.cluster_id and stretch.epoch = sample.epoch;
delete from sample where stretch_id is null or begin_lsn is null;
alter table sample drop constraint sample_pkey, alter column stretch_id set not null, alter column begin_lsn set not null,
  add primary key (stretch_id, at), add foreign key (stretch_id) references stretch on delete cascade,
  drop column cluster_id, drop column epoch;

-- Keeps stretch.earliest_at: where the stretch begins, if a backup before it can be used, and otherwise the end of the
-- first backup in it. The base of a restored cluster counts as a backup before its first stretch.
create function refresh_stretches(changed text) returns void language sql as $$
  update stretch set earliest_at = first.at
    from (
      select ranged.id, coalesce(case when
          exists (
            select 1 from backup
            where backup.cluster_id = changed and backup.epoch = ranged.epoch and state = 'completed' and damage is null
              and not alone and backup.start_lsn >= run_lsn and backup.stop_lsn <= ranged.from_lsn)
          or (run_lsn = '0/0' and archive.base is not null)
        then ranged.from_at end, (
          select min(stopped_at) from backup
          where backup.cluster_id = changed and backup.epoch = ranged.epoch and state = 'completed' and damage is null
            and not alone and backup.start_lsn >= run_lsn
            and (backup.stop_lsn > ranged.from_lsn or ranged.from_at is null)
            and backup.stop_lsn <= coalesce(ranged.next_lsn, 'FFFFFFFF/FFFFFFFF'))) as at
      from (
        select id, epoch, from_lsn, from_at,
          lead(from_lsn) over (partition by epoch order by from_lsn, id) as next_lsn,
          coalesce(max(from_lsn) filter (where after_hole) over (partition by epoch order by from_lsn, id), '0/0') as run_lsn
        from stretch where cluster_id = changed) ranged
      join archive on archive.cluster_id = changed and archive.epoch = ranged.epoch) first
    where stretch.id = first.id and stretch.earliest_at is distinct from first.at
$$;

drop trigger backup_earliest on backup;
drop trigger archive_earliest on archive;
drop function refresh_earliest_at();
alter table archive drop column latest_at, drop column latest_lsn, drop column earliest_at;

create function refresh_stretches_of_row() returns trigger language plpgsql as $$
begin
  perform refresh_stretches(coalesce(new.cluster_id, old.cluster_id));
  return null;
end $$;
create trigger backup_stretches after insert or delete or update of state, damage, stopped_at, epoch, alone on backup
  for each row execute function refresh_stretches_of_row();
create trigger archive_stretches after update of base on archive
  for each row execute function refresh_stretches_of_row();
create trigger stretch_stretches after insert or delete or update of from_lsn, from_at, after_hole on stretch
  for each row execute function refresh_stretches_of_row();
select refresh_stretches(cluster_id) from (select distinct cluster_id from stretch) known;

-- Plans that were not executed yet: the position of a time is searched for when the restore begins.
update restore set plan = jsonb_set(plan - 'target', '{search}', jsonb_build_object(
    'time', (extract(epoch from (plan -> 'target' ->> 'time')::timestamptz) * 1000000)::bigint::text,
    'from', plan -> 'backup' ->> 'stopLsn'))
  where plan -> 'target' ->> 'kind' = 'time' and phase in ('waiting', 'copying');
update restore set plan = plan - 'target' where plan ? 'target';

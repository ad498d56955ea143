-- A pinned backup that is older than the window stands alone: it is kept with its own log, and the log behind it is not.
alter table backup add column alone boolean not null default false;

create or replace function note_earliest() returns trigger language plpgsql as $$
begin
  update archive set earliest_at = first.at
    from archive same, lateral (
      select least(
        (select min(stopped_at) from backup
         where backup.cluster_id = same.cluster_id and backup.epoch = same.epoch and state = 'completed'
           and damage is null and not alone),
        (same.base ->> 'at')::timestamptz) as at) first
    where same.cluster_id = coalesce(new.cluster_id, old.cluster_id)
      and archive.cluster_id = same.cluster_id and archive.epoch = same.epoch
      and archive.earliest_at is distinct from first.at;
  return null;
end $$;
drop trigger backup_earliest on backup;
create trigger backup_earliest after insert or delete or update of state, damage, stopped_at, epoch, alone on backup
  for each row execute function note_earliest();

-- A cluster is read far more often than anything about it changes, so what a reader is shown lies in its row or one step
-- away, and is not worked out with each read.
alter table cluster
  add column direct_port int,
  add column pooler_port int;
update cluster set
  direct_port = (select port from cluster_port where cluster_id = cluster.id and purpose = 'direct'),
  pooler_port = (select port from cluster_port where cluster_id = cluster.id and purpose = 'pooler');

alter table archive
  add column earliest_at timestamptz; -- the first moment that can be restored; null while nothing in it is backed up

create function note_earliest() returns trigger language plpgsql as $$
begin
  update archive set earliest_at = first.at
    from archive same, lateral (
      select least(
        (select min(stopped_at) from backup
         where backup.cluster_id = same.cluster_id and backup.epoch = same.epoch and state = 'completed' and damage is null),
        (same.base ->> 'at')::timestamptz) as at) first
    where same.cluster_id = coalesce(new.cluster_id, old.cluster_id)
      and archive.cluster_id = same.cluster_id and archive.epoch = same.epoch
      and archive.earliest_at is distinct from first.at;
  return null;
end $$;
create trigger backup_earliest after insert or delete or update of state, damage, stopped_at, epoch on backup
  for each row execute function note_earliest();
create trigger archive_earliest after insert or update of base on archive
  for each row execute function note_earliest();
update archive set base = base;

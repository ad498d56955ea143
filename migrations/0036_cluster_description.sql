-- Since when the repository does not know which backups of a cluster are pinned and what its drills ask; null when it does.
alter table cluster add column undescribed_since timestamptz;
update cluster set undescribed_since = now()
  where state <> 'purged' and (drill_query is not null or exists (
    select from backup where backup.cluster_id = cluster.id and backup.pinned));

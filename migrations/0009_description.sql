-- Whether an undelete may restore less than the archive is recorded to have had, and what it lost.
alter table restore add column accept_loss boolean not null default false, add column loss text;

-- The description in the repository now contains what adoption needs; it is written again for every cluster.
update cluster set undescribed_since = now()
  where undescribed_since is null and not scratch and state in ('ready', 'deleted');

-- Set before a user is dropped and kept until the cluster no longer has it, so that an interrupted deletion is finished and
-- its password is never shown or used again.
alter table cluster_user add column deleting_at timestamptz;

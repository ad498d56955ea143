-- A password that the cluster is being told, and since when: of whoever is stopped on the way the loop finds out whether the
-- cluster has it.
alter table cluster_user add column next_password bytea, add column next_password_at timestamptz;

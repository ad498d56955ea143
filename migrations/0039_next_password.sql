-- A password that the cluster is being told, and since when: whoever is stopped on the way is followed by the loop.
alter table cluster_user add column next_password bytea, add column next_password_at timestamptz;

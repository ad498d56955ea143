-- Extensions that a cluster was created with, which its PostgreSQL installation must have.
alter table cluster add column extensions text[] not null default '{}';

-- The last upgrade of a cluster. A minor upgrade restarts it with newer programs. A major upgrade belongs to the new
-- cluster, which starts as a restored copy of its source.
create table upgrade (
  cluster_id    text primary key references cluster,
  kind          text not null check (kind in ('minor', 'major')),
  phase         text not null,
  from_version  text not null,
  to_version    text not null,    -- of a major upgrade the major version, until the installation is chosen
  planned_at    timestamptz,      -- when a minor upgrade is to begin; null for at once
  created_at    timestamptz not null default now(),
  started_at    timestamptz,
  restarted_at  timestamptz,      -- when the server was first started with the new programs
  finished_at   timestamptz,
  previous      jsonb,            -- the installation to go back to
  target        jsonb,            -- the installation to change to
  error         text
);

alter table cluster
  add column newest_version text, -- the installed minor version that it could be upgraded to
  add column upgraded boolean not null default false; -- whether it ever had an upgrade, like the other flags

create function set_upgraded_flag() returns trigger language plpgsql as $$
begin
  update cluster set upgraded = true where id = new.cluster_id and not upgraded;
  return null;
end $$;
create trigger upgrade_flag after insert on upgrade for each row execute function set_upgraded_flag();

-- Whether programs may have requests replayed to apps of their organization in other private networks.
alter table org add cross_network_replays boolean not null default true;

-- Told without an app: it concerns all of an organization.
create function tell_org_route() returns trigger language plpgsql as $$
begin
  perform pg_notify('route', 'org ' || new.id);
  return null;
end $$;

create trigger org_route after update of cross_network_replays on org
  for each row execute function tell_org_route();

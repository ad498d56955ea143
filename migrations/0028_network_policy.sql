-- What machines of an app may reach and be reached at, beside what the edge carries.
create table network_policy (
  app_id      text not null references app,
  id          text collate "C" not null,
  name        text not null,
  selector    jsonb not null, -- which machines: all, machines, metadata
  rules       jsonb not null, -- action, direction, ports
  created_at  timestamptz not null default now(),
  primary key (app_id, id)
);

alter table app add policies_version bigint not null default 0; -- grows with every change of its network policies
-- Of the policies that it is held to while it runs; -1 when it may be others that select it by now.
alter table machine add policies_version bigint not null default 0;

-- Whoever waits for a machine to be held to them hears of it too.
drop trigger machine_told on machine;
create trigger machine_told after insert or update of state, config, cordoned, instance_id, policies_version on machine
  for each row execute function tell_of_machine();

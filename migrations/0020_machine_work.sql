alter table machine
  add exits_seen     int not null default 0, -- the number of the last end of its program that became an event
  add launched       boolean not null default false, -- some version of it has run
  add next_start_at  timestamptz; -- of one with a schedule
create index machine_next_start on machine (next_start_at) where next_start_at is not null;
create index machine_destroyed on machine (destroyed_at) where destroyed_at is not null;
create index machine_updated on machine (updated_at, id);

create function stamp_machine() returns trigger language plpgsql as $$
begin
  new.updated_at := now();
  return new;
end $$;
create trigger machine_stamped before update of state, config, cordoned, instance_id, image, region on machine
  for each row execute function stamp_machine();

-- Whoever waits for a machine hears of a change when it is committed, and reads the row.
create function tell_of_machine() returns trigger language plpgsql as $$
begin
  perform pg_notify('machine_change', new.app_id || ' ' || new.id);
  return null;
end $$;
create trigger machine_told after insert or update of state, config, cordoned, instance_id on machine
  for each row execute function tell_of_machine();

-- Private networks: each organization has one called `default`, and one for each other name that its apps were given.
create table network (
  number      int generated always as identity primary key, -- addresses follow from it; never given twice
  org_id      text not null references org,
  name        text collate "C" not null,
  created_at  timestamptz not null default now(),
  unique (org_id, name)
);

-- The numbers of boxes, from which uids and addresses follow: sandboxes and machines share them.
create table box_slot (
  slot    int primary key check (slot between 1 and 1023),
  holder  text not null
);
insert into box_slot select slot, id from sandbox where slot is not null;

create function hold_slot() returns trigger language plpgsql as $$
begin
  if tg_op <> 'INSERT' and old.slot is not null and (tg_op = 'DELETE' or new.slot is distinct from old.slot) then
    delete from box_slot where slot = old.slot and holder = old.id;
  end if;
  if tg_op <> 'DELETE' and new.slot is not null and (tg_op = 'INSERT' or new.slot is distinct from old.slot) then
    insert into box_slot values (new.slot, new.id);
  end if;
  return null;
end $$;
create trigger sandbox_slot after insert or delete or update of slot on sandbox
  for each row execute function hold_slot();

alter table app add secrets_version bigint not null default 0; -- grows with every change of its secrets

alter table machine
  add name               text collate "C" not null,
  add region             text not null,
  add instance_id        text not null, -- of the version that runs or is to run; a new one with every update
  add config             jsonb not null,
  add image              jsonb, -- registry, repository, tag, digest, labels; null until the reference was resolved
  add slot               int check (slot between 1 and 1023), -- null when it has been removed
  add network_number     int not null references network,
  add state_since        timestamptz not null default now(),
  add progress_at        timestamptz,
  add updated_at         timestamptz not null default now(),
  add wanted             boolean not null, -- whether it is to run when what happens to it now is over
  add cordoned           boolean not null default false,
  add secrets            bytea, -- encrypted: names and values as they were when this version was made
  add secrets_version    bigint not null default 0,
  add restart_count      int not null default 0,
  add failure            text, -- a sentence, for whoever waits for it
  add stop_signal        text, -- of the stop that is under way, where the caller named one
  add stop_timeout_ms    int,
  add lease_nonce        text,
  add lease_owner        text,
  add lease_description  text,
  add lease_until        timestamptz,
  add destroyed_at       timestamptz;
create unique index machine_name on machine (app_id, name) where state <> 'destroyed';
create unique index machine_slot on machine (slot) where slot is not null;
create trigger machine_slot after insert or delete or update of slot on machine
  for each row execute function hold_slot();

create table machine_version (
  machine_id  text not null references machine on delete cascade,
  version     text collate "C" not null,
  config      jsonb not null,
  created_at  timestamptz not null default now(),
  primary key (machine_id, version)
);

create table machine_event (
  id          text collate "C" primary key, -- sorts by time
  machine_id  text not null references machine on delete cascade,
  type        text not null, -- launch, start, exit, restart, update, stop, suspend, destroy, …
  status      text not null,
  source      text not null check (source in ('user', 'flyd', 'proxy')),
  at          timestamptz not null default now(),
  request     jsonb
);
create index machine_event_machine on machine_event (machine_id, id desc);

-- How the checks of a machine last went; written only when that changes.
create table machine_check (
  machine_id  text not null references machine on delete cascade,
  name        text collate "C" not null,
  status      text not null check (status in ('passing', 'warning', 'critical')),
  output      text not null default '',
  updated_at  timestamptz not null default now(),
  primary key (machine_id, name)
);

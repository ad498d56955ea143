-- The state database. Tables are grouped by area: account, background work, private networks and box slots, apps and
-- machines, app routing, Postgres clusters, backups and restores, sandboxes.
--
-- Conventions:
-- * Rows of deleted resources are kept, so names are unique only among the states in which a resource exists.
-- * `state` is written only by src/store/transition.ts; the allowed values are the state tables in src/model.
-- * Names are collated "C", so that pages are sorted by bytes and cursors compare like the index does.
-- * Triggers that end in `_route` and `_watch` send a notification at commit, so listeners read the committed row.

-- Area: Account

create table org (
  id                     text primary key,
  numeric_id             int generated always as identity unique,
  slug                   text collate "C" not null unique,
  name                   text not null,
  created_at             timestamptz not null default now(),
  cross_network_replays  boolean not null default true -- apps may replay requests to apps in other private networks
);

-- The edge reloads all routes of the organization.
create function notify_org_route() returns trigger language plpgsql as $$
begin
  perform pg_notify('route', 'org ' || new.id);
  return null;
end $$;
create trigger org_route after update of cross_network_replays on org
  for each row execute function notify_org_route();

create table token (
  id          text primary key,
  hash        bytea not null unique, -- SHA-256; the token itself is shown once and never stored
  kind        text not null check (kind in ('root', 'org', 'read', 'sandbox', 'app')),
  org_id      text references org,
  sandbox     text,
  name        text not null default '',
  created_at  timestamptz not null default now(),
  expires_at  timestamptz,
  revoked_at  timestamptz,
  -- A sandbox calls the API about itself with a token that the platform issues. It has the id of the sandbox, is never
  -- listed, and is deleted with the sandbox.
  inside      boolean not null default false,
  app_id      text, -- the only app that an app token can change, such as a deploy token of a CI job
  check ((org_id is null) = (kind = 'root')),
  check ((sandbox is not null) = (kind = 'sandbox')),
  check ((app_id is not null) = (kind = 'app'))
);
create index token_org on token (org_id, created_at);
create index token_app on token (app_id) where app_id is not null;

-- The first response to a request with an Idempotency-Key, written in the transaction of the change it reports.
create table idempotency (
  token_id    text not null references token on delete cascade,
  path        text not null,
  key         text not null,
  fingerprint bytea not null, -- SHA-256 of query and body: the same key with a different request is rejected
  status      int not null,
  answer      bytea not null, -- encrypted, because responses contain passwords and tokens
  created_at  timestamptz not null default now(),
  primary key (token_id, path, key)
);
create index idempotency_age on idempotency (created_at);

-- Area: Background work

-- The queue of resources to reconcile. It has no payload: a step reads the resource itself, so a late, repeated or lost
-- wake-up never acts on stale data.
create table work (
  kind         text not null,
  resource_id  text not null,
  run_at       timestamptz not null default now(),
  wakes        bigint not null default 1, -- a finishing worker compares this to see whether it was woken meanwhile
  attempts     int not null default 0,
  token        uuid,                      -- identifies one lease; a worker that overran finds another token here
  leased_until timestamptz,
  note         text not null default '',  -- what the last step waits for; shown to the user
  last_error   text,
  primary key (kind, resource_id)
) with (fillfactor = 50);
create index work_due on work (run_at);

-- One row per state transition.
create table event (
  id          bigint generated always as identity primary key,
  at          timestamptz not null default now(),
  kind        text not null,
  resource_id text not null,
  from_state  text not null,
  to_state    text not null,
  event       text not null,
  note        text not null default ''
);
create index event_resource on event (kind, resource_id, id);

-- Area: Private networks and box slots

-- Each organization has a private network called `default`, and one for each other network name its apps use.
create table network (
  number      int generated always as identity primary key, -- addresses derive from it, so it is never reused
  org_id      text not null references org,
  name        text collate "C" not null,
  created_at  timestamptz not null default now(),
  services    int not null default 0, -- service addresses allocated so far; they are never reused
  unique (org_id, name)
);

-- The slots in use. Uids and addresses of boxes derive from the slot, and sandboxes and machines share one range.
create table box_slot (
  slot    int primary key check (slot between 1 and 1023),
  holder  text not null
);

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

-- Area: Apps

-- org_id has no foreign key and numeric_id no unique index: the inserting statement reads the organization,
-- organizations are never deleted, and identity columns do not repeat. Both checks doubled the cost of an insert.
create table app (
  id                text primary key,
  numeric_id        int generated always as identity,
  org_id            text not null,
  name              text collate "C" not null,
  network           text not null,
  enable_subdomains boolean not null,
  state             text not null default 'active',
  state_since       timestamptz not null default now(),
  created_at        timestamptz not null default now(),
  secrets_version   bigint not null default 0, -- incremented by every change of its secrets
  policies_version  bigint not null default 0  -- incremented by every change of its network policies
);
-- The operator class limits this index to equality. Otherwise the planner also uses it to list an organization's apps by
-- name and scans the apps of all other organizations.
create unique index app_name on app (name text_pattern_ops) where state = 'active';
create index app_org_name on app (org_id, name) where state = 'active';

alter table token add foreign key (app_id) references app;

-- The number of active apps per organization, so that the total of a list does not have to be counted. The counter is
-- split by server process, so that concurrent inserts of one organization do not wait for the same row.
create table app_count (
  org_id  text not null references org,
  shard   int not null,
  apps    bigint not null,
  primary key (org_id, shard)
) with (fillfactor = 50);

create function count_app() returns trigger language plpgsql as $$
declare
  before int := case when tg_op <> 'INSERT' and old.state = 'active' then 1 else 0 end;
  after  int := case when tg_op <> 'DELETE' and new.state = 'active' then 1 else 0 end;
begin
  if before <> after then
    update app_count set apps = apps + after - before
      where org_id = coalesce(new.org_id, old.org_id) and shard = pg_backend_pid() % 32;
    if not found then
      insert into app_count as c (org_id, shard, apps)
        values (coalesce(new.org_id, old.org_id), pg_backend_pid() % 32, after - before)
        on conflict (org_id, shard) do update set apps = c.apps + excluded.apps;
    end if;
  end if;
  return null;
end $$;
create trigger app_counted after delete or update of state on app for each row execute function count_app();

-- Counts all apps that one statement inserts with one update.
create function count_new_apps() returns trigger language plpgsql as $$
declare
  new record;
begin
  for new in select org_id, count(*) as apps from made where state = 'active' group by org_id loop
    update app_count set apps = app_count.apps + new.apps
      where org_id = new.org_id and shard = pg_backend_pid() % 32;
    if not found then
      insert into app_count as c (org_id, shard, apps) values (new.org_id, pg_backend_pid() % 32, new.apps)
        on conflict (org_id, shard) do update set apps = c.apps + excluded.apps;
    end if;
  end loop;
  return null;
end $$;
create trigger apps_counted after insert on app referencing new table as made
  for each statement execute function count_new_apps();

-- Environment secrets of an app.
create table secret (
  app_id      text not null references app,
  name        text collate "C" not null,
  value       bytea not null, -- encrypted
  digest      text not null,  -- keyed, so that short values cannot be found by trying
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  primary key (app_id, name)
);

-- Keys that the platform uses on behalf of an app without revealing them.
create table secret_key (
  app_id      text not null references app,
  name        text collate "C" not null,
  type        text not null,
  key         bytea not null, -- encrypted
  public_key  bytea,
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  primary key (app_id, name)
);

-- Firewall rules of an app's machines, in addition to the traffic that the edge forwards.
create table network_policy (
  app_id      text not null references app,
  id          text collate "C" not null,
  name        text not null,
  selector    jsonb not null, -- which machines it applies to: all, machines, metadata
  rules       jsonb not null, -- action, direction, ports
  created_at  timestamptz not null default now(),
  primary key (app_id, id)
);

-- The deployment history that deploying clients record: image, strategy, time and result.
create table release (
  id          text primary key,
  app_id      text not null references app,
  version     int not null,
  status      text not null,
  image       text not null,
  strategy    text not null,
  definition  json not null, -- stored as received and never interpreted
  created_by  text not null, -- the name of the token
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  unique (app_id, version)
);

-- Area: Machines and volumes

create function set_updated_at() returns trigger language plpgsql as $$
begin
  new.updated_at := now();
  return new;
end $$;

create table machine (
  id                 text primary key,
  app_id             text not null references app,
  state              text not null,
  created_at         timestamptz not null default now(),
  name               text collate "C" not null,
  region             text not null,
  instance_id        text not null, -- the version that runs or will run; every update gets a new one
  config             jsonb not null,
  image              jsonb, -- registry, repository, tag, digest, labels; null until the reference is resolved
  slot               int check (slot between 1 and 1023), -- null once the machine is removed
  network_number     int not null references network,
  state_since        timestamptz not null default now(),
  progress_at        timestamptz, -- the last progress in a long state, from which its deadline counts
  updated_at         timestamptz not null default now(),
  wanted             boolean not null, -- whether it should run after the current transition
  cordoned           boolean not null default false,
  secrets            bytea, -- encrypted: names and values from the time this version was created
  secrets_version    bigint not null default 0,
  restart_count      int not null default 0,
  failure            text, -- one sentence, shown to callers that wait for the machine
  stop_signal        text, -- the signal that the caller of the current stop asked for
  stop_timeout_ms    int,
  lease_nonce        text,
  lease_owner        text,
  lease_description  text,
  lease_until        timestamptz,
  destroyed_at       timestamptz,
  exits_seen         int not null default 0, -- the number of the last process exit that was recorded as an event
  launched           boolean not null default false, -- whether any version of it has run
  next_start_at      timestamptz, -- the next scheduled start
  -- The app's policies_version that its firewall has applied; -1 when a change of metadata may select other policies.
  policies_version   bigint not null default 0
);
create index machine_app on machine (app_id);
create unique index machine_name on machine (app_id, name) where state <> 'destroyed';
create unique index machine_slot on machine (slot) where slot is not null;
create index machine_next_start on machine (next_start_at) where next_start_at is not null;
create index machine_destroyed on machine (destroyed_at) where destroyed_at is not null;
create index machine_updated on machine (updated_at, id);

create trigger machine_slot after insert or delete or update of slot on machine
  for each row execute function hold_slot();
create trigger machine_updated_at before update of state, config, cordoned, instance_id, image, region on machine
  for each row execute function set_updated_at();

create function notify_machine_change() returns trigger language plpgsql as $$
begin
  perform pg_notify('machine_change', new.app_id || ' ' || new.id);
  return null;
end $$;
create trigger machine_watch after insert or update of state, config, cordoned, instance_id, policies_version on machine
  for each row execute function notify_machine_change();

-- Earlier configurations of a machine.
create table machine_version (
  machine_id  text not null references machine on delete cascade,
  version     text collate "C" not null,
  config      jsonb not null,
  created_at  timestamptz not null default now(),
  primary key (machine_id, version)
);

-- The events of a machine that the API shows.
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

-- The latest result of each health check; written only when it changes.
create table machine_check (
  machine_id  text not null references machine on delete cascade,
  name        text collate "C" not null,
  status      text not null check (status in ('passing', 'warning', 'critical')),
  output      text not null default '',
  updated_at  timestamptz not null default now(),
  primary key (machine_id, name)
);

create table volume (
  id                  text primary key,
  app_id              text not null references app,
  created_at          timestamptz not null default now(),
  name                text collate "C" not null,
  region              text not null,
  size_gb             int not null,
  state               text not null default 'creating',
  state_since         timestamptz not null default now(),
  snapshot_retention  int not null, -- days
  auto_backup         boolean not null,
  source_volume_id    text, -- the volume it was forked from
  source_snapshot_id  text, -- the snapshot it was restored from
  machine_id          text references machine on delete set null, -- the machine it is attached to
  detached_at         timestamptz,
  failure             text, -- one sentence
  updated_at          timestamptz not null default now()
);
create index volume_app on volume (app_id);
create index volume_machine on volume (machine_id) where machine_id is not null;
create index volume_updated on volume (updated_at, id);
create trigger volume_updated_at
  before update of state, size_gb, snapshot_retention, auto_backup, machine_id, failure on volume
  for each row execute function set_updated_at();

create table snapshot (
  id              text primary key,
  volume_id       text not null references volume on delete cascade,
  state           text not null default 'creating',
  state_since     timestamptz not null default now(),
  size_bytes      bigint, -- null until it is complete
  volume_bytes    bigint not null,
  retention_days  int not null,
  created_at      timestamptz not null default now(),
  failure         text
);
create index snapshot_volume on snapshot (volume_id, created_at);
-- One at a time per volume, because writes to the volume block while a snapshot is taken.
create unique index snapshot_under_way on snapshot (volume_id) where state = 'creating';

-- Area: Routing to apps

-- Addresses of apps. Several apps can have the same shared address; the edge tells them apart by host name.
create table ip (
  app_id          text not null references app,
  ip              inet not null,
  type            text not null, -- v4, v6, shared_v4, private_v6
  region          text not null default 'global',
  shared          boolean not null default false,
  network_number  int references network, -- the private network that can reach a private address
  service_name    text,
  created_at      timestamptz not null default now(),
  primary key (app_id, ip)
);
create unique index ip_dedicated on ip (ip) where not shared;

-- Released addresses, which are allocated again only after all others: DNS records may still point to them.
create table released_ip (
  ip           inet primary key,
  released_at  timestamptz not null default now()
);
create index released_ip_time on released_ip (released_at);

create function track_released_ip() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    delete from released_ip where ip = new.ip;
  elsif not exists (select 1 from ip where ip = old.ip) then
    insert into released_ip (ip) values (old.ip) on conflict (ip) do update set released_at = now();
  end if;
  return null;
end $$;
create trigger ip_released after insert or delete on ip for each row execute function track_released_ip();

-- Custom host names of apps.
create table host (
  hostname    text collate "C" primary key,
  app_id      text not null references app,
  created_at  timestamptz not null default now()
);
create index host_app on host (app_id, hostname);

-- TLS certificates of custom host names: uploaded by the owner, issued by the platform's authority, or both.
create table certificate (
  hostname     text collate "C" not null references host on delete cascade,
  app_id       text not null,
  source       text not null check (source in ('custom', 'authority')),
  fullchain    text not null,
  private_key  bytea not null, -- encrypted with a key that the edge also has
  created_at   timestamptz not null default now(),
  expires_at   timestamptz not null,
  primary key (hostname, source)
);

-- The recent peak load of a machine as seen by each edge worker; the sum decides whether an idle machine is stopped.
create unlogged table machine_load (
  machine_id  text not null references machine on delete cascade,
  worker      text not null,
  load        int not null,
  at          timestamptz not null default now(),
  primary key (machine_id, worker)
);

-- The edge reloads the routes of the app.
create function notify_app_route() returns trigger language plpgsql as $$
declare
  changed jsonb := coalesce(to_jsonb(new), to_jsonb(old));
  app_id text := case tg_table_name
    when 'app' then changed ->> 'id'
    when 'machine_check' then (select machine.app_id from machine where id = changed ->> 'machine_id')
    else changed ->> 'app_id' end;
begin
  -- The checks of a deleted machine are deleted after it, so its app can no longer be found.
  if app_id is not null then perform pg_notify('route', 'app ' || app_id); end if;
  return null;
end $$;

-- Inserts are not announced: a new app has neither addresses nor machines.
create trigger app_route after update of name, state, enable_subdomains on app
  for each row execute function notify_app_route();
create trigger machine_route after insert or delete or update of state, config, cordoned, slot, instance_id on machine
  for each row execute function notify_app_route();
create trigger machine_check_route after insert or delete or update of status on machine_check
  for each row execute function notify_app_route();
create trigger ip_route after insert or delete or update on ip
  for each row execute function notify_app_route();
create trigger host_route after insert or delete or update on host
  for each row execute function notify_app_route();
create trigger certificate_route after insert or delete or update on certificate
  for each row execute function notify_app_route();

-- Area: Postgres clusters

-- Clusters are read far more often than they change, so ports and flags are stored in the row rather than looked up.
create table cluster (
  id                        text primary key,
  org_id                    text not null references org,
  name                      text collate "C" not null,
  state                     text not null default 'creating',
  state_since               timestamptz not null default now(),
  progress_at               timestamptz, -- the last progress in a long state, from which its deadline counts
  plan                      text not null,
  pg_major                  text not null check (pg_major in ('16', '17')),
  disk_size_gb              int not null check (disk_size_gb > 0),
  replicas                  int not null default 0,
  region                    text not null,
  postgis_enabled           boolean not null,
  pool_mode                 text not null check (pool_mode in ('session', 'transaction')),
  created_at                timestamptz not null default now(),
  deleted_at                timestamptz,
  toolchain                 jsonb, -- the PostgreSQL installation it was created with
  uid                       int,
  health                    text not null default 'ok',
  health_reason             text not null default '',
  health_since              timestamptz not null default now(),
  storage_provisioned_bytes bigint,
  storage_used_bytes        bigint,
  storage_measured_at       timestamptz,
  quota_checked_at          timestamptz,
  synchronous_archive       boolean not null default false,
  drill_query               text,
  scratch                   boolean not null default false, -- created for a drill; not listed and not reachable
  retention_at              timestamptz, -- when expired backups were last removed
  direct_port               int,
  pooler_port               int,
  -- Whether it ever had an attachment, a restore or a finished drill. Most clusters have none, so readers skip the
  -- lookup. The flags are never cleared.
  attached                  boolean not null default false,
  restored                  boolean not null default false,
  drilled                   boolean not null default false,
  number                    int generated always as identity unique, -- private addresses derive from it; never reused
  -- Since when the repository's copy of pins and drill query is out of date; null when it is current.
  undescribed_since         timestamptz,
  drill_query_at            timestamptz not null default now() -- drills restore to a later time, when its tables exist
);
create unique index cluster_name on cluster (org_id, name) where state not in ('deleted', 'purged');
create unique index cluster_uid on cluster (uid) where state not in ('deleted', 'purged');
create index cluster_org on cluster (org_id, created_at, id);
create index cluster_being_made on cluster (state_since) where state in ('creating', 'initializing');

-- The allocated ports; the primary key prevents allocating one twice.
create table cluster_port (
  port        int primary key,
  cluster_id  text not null references cluster,
  purpose     text not null check (purpose in ('direct', 'pooler')),
  unique (cluster_id, purpose)
);

-- Database users that the platform manages.
create table cluster_user (
  cluster_id        text not null references cluster,
  username          text not null,
  role              text not null check (role in ('schema_admin', 'writer', 'reader')),
  password          bytea not null, -- encrypted, because the API can show it again
  created_at        timestamptz not null default now(),
  -- A password change in progress. If it is interrupted, the reconciler asks the cluster which password it has.
  next_password     bytea,
  next_password_at  timestamptz,
  primary key (cluster_id, username)
);

-- The apps that a cluster is attached to.
create table attachment (
  cluster_id  text not null references cluster,
  app_id      text not null references app,
  attached_at timestamptz not null default now(),
  primary key (cluster_id, app_id)
);
create index attachment_app on attachment (app_id);

-- Secrets that attaching set. Detaching removes those that still have the same value.
create table attachment_secret (
  cluster_id text not null,
  app_id     text not null,
  name       text collate "C" not null,
  digest     text not null,
  primary key (cluster_id, app_id, name),
  foreign key (cluster_id, app_id) references attachment on delete cascade
);

-- The edge reloads the private addresses of the cluster.
create function notify_cluster_route() returns trigger language plpgsql as $$
begin
  perform pg_notify('route', 'cluster ' || case tg_table_name
    when 'cluster' then to_jsonb(new) ->> 'id'
    when 'attachment' then coalesce(to_jsonb(new), to_jsonb(old)) ->> 'cluster_id'
    else '*' end); -- a new network: all clusters of the organization
  return null;
end $$;

create trigger cluster_route after update of state, direct_port, pooler_port on cluster
  for each row when (old.state = 'ready' or new.state = 'ready') execute function notify_cluster_route();
create trigger attachment_route after insert or delete on attachment
  for each row execute function notify_cluster_route();
create trigger network_cluster_route after insert on network
  for each row execute function notify_cluster_route();

-- Area: Backups and restores

-- The archived WAL of a cluster, in epochs. An epoch is gapless: a lost replication slot or missing WAL ends it, and
-- times between two epochs cannot be restored.
create table archive (
  cluster_id  text not null references cluster,
  epoch       int not null,
  slot        text not null,
  timeline    int not null,
  started_at  timestamptz not null default now(),
  start_lsn   pg_lsn not null,
  ended_at    timestamptz,
  -- The newest sample whose WAL is archived: every commit up to latest_at is before latest_lsn.
  latest_at   timestamptz,
  latest_lsn  pg_lsn,
  base        jsonb,      -- until its first own backup, a restored cluster uses its parent's: {backup, pieces, at}
  earliest_at timestamptz, -- the first restorable time; null while the epoch has no backup
  primary key (cluster_id, epoch)
);
create unique index archive_current on archive (cluster_id) where ended_at is null;

create table backup (
  id               text primary key,
  cluster_id       text not null references cluster,
  label            text not null,
  state            text not null default 'queued',
  state_since      timestamptz not null default now(),
  progress_at      timestamptz,
  type             text not null default 'full',
  epoch            int,
  timeline         int,
  start_lsn        pg_lsn,
  stop_lsn         pg_lsn,
  created_at       timestamptz not null default now(),
  started_at       timestamptz,
  stopped_at       timestamptz, -- the source's clock when the backup ended: the earliest time it can be restored to
  finished_at      timestamptz,
  size_bytes       bigint,
  pinned           boolean not null default false,
  verified_at      timestamptz,
  damage           text,        -- what the last scrub found
  scrub_started_at timestamptz, -- set while a scrub reads its checksums
  damaged_at       timestamptz, -- when the last scrub found it damaged
  scrubbed_at      timestamptz, -- when a scrub last found it intact
  bytes_verified   bigint not null default 0, -- progress of the verification that follows the copy
  -- A pinned backup that is older than the recovery window keeps only the WAL it needs itself, not the WAL after it.
  alone            boolean not null default false,
  unique (cluster_id, label)
);
-- One at a time per cluster.
create unique index backup_running on backup (cluster_id) where state in ('queued', 'running');
create index backup_cluster on backup (cluster_id, stopped_at);

-- Keeps archive.earliest_at equal to the end of the first intact backup, or to the time of the parent's base.
create function refresh_earliest_at() returns trigger language plpgsql as $$
begin
  update archive set earliest_at = first.at
    from archive same, lateral (
      select least(
        (select min(stopped_at) from backup
         where backup.cluster_id = same.cluster_id and backup.epoch = same.epoch and state = 'completed'
           and damage is null and not alone),
        (same.base ->> 'at')::timestamptz) as at) first
    where same.cluster_id = coalesce(new.cluster_id, old.cluster_id)
      and archive.cluster_id = same.cluster_id and archive.epoch = same.epoch
      and archive.earliest_at is distinct from first.at;
  return null;
end $$;
create trigger backup_earliest after insert or delete or update of state, damage, stopped_at, epoch, alone on backup
  for each row execute function refresh_earliest_at();
create trigger archive_earliest after insert or update of base on archive
  for each row execute function refresh_earliest_at();

-- One row per cluster that was created by a restore.
create table restore (
  cluster_id        text primary key references cluster,
  source_cluster_id text not null references cluster,
  backup_id         text,        -- as requested
  pitr_time         timestamptz, -- as requested
  plan              jsonb,       -- backup, WAL pieces, recovery target; null until it is resolved
  phase             text not null default 'waiting',
  bytes_done        bigint not null default 0,
  bytes_total       bigint,
  replayed_until    timestamptz,
  verified_at       timestamptz,
  purpose           text not null default 'restore' check (purpose in ('restore', 'fork', 'undelete', 'drill')),
  bytes_verified    bigint not null default 0, -- progress of the verification that follows the copy
  replayed_lsn      pg_lsn -- progress of a replay through WAL without commits
);
create index restore_source on restore (source_cluster_id);

-- Backups and WAL that retention must keep, and the cluster that needs them: a running restore, or a restored cluster
-- without a backup of its own.
create table pin (
  holder_id   text not null references cluster,
  cluster_id  text not null,
  label       text not null,
  epoch       int not null,
  from_lsn    pg_lsn not null,
  primary key (holder_id, cluster_id, label, epoch)
);
create index pin_cluster on pin (cluster_id);

-- One time and WAL position per minute, so that drills and restores of damaged archives can choose a time whose position
-- is known.
create table sample (
  cluster_id  text not null references cluster,
  epoch       int not null,
  at          timestamptz not null,
  lsn         pg_lsn not null,
  primary key (cluster_id, epoch, at)
);

-- Restore drills: a restore to a random time into a scratch cluster, which is checked and deleted.
create table drill (
  id           text primary key,
  cluster_id   text not null references cluster,
  state        text not null default 'queued',
  state_since  timestamptz not null default now(),
  progress_at  timestamptz,
  created_at   timestamptz not null default now(),
  started_at   timestamptz,
  target       timestamptz,      -- the restored time
  scratch_id   text,
  finished_at  timestamptz,
  seconds      double precision, -- from leaving the queue to the end
  result       text,             -- 'ok' or 'failed: …'
  answer       text              -- the result of the owner's drill query
);
create index drill_cluster on drill (cluster_id, created_at);
-- One per cluster, and one running on this host.
create unique index drill_active on drill (cluster_id) where state <> 'done';
create unique index drill_running on drill ((true)) where state in ('restoring', 'checking', 'cleaning');

create function set_cluster_flag() returns trigger language plpgsql as $$
begin
  if tg_table_name = 'attachment' then update cluster set attached = true where id = new.cluster_id and not attached;
  elsif tg_table_name = 'restore' then update cluster set restored = true where id = new.cluster_id and not restored;
  else update cluster set drilled = true where id = new.cluster_id and not drilled;
  end if;
  return null;
end $$;
create trigger attachment_flag after insert on attachment for each row execute function set_cluster_flag();
create trigger restore_flag after insert on restore for each row execute function set_cluster_flag();
create trigger drill_flag after insert or update of state on drill for each row
  when (new.state = 'done') execute function set_cluster_flag();

-- Area: Sandboxes

create table sandbox (
  id                     text primary key,
  org_id                 text not null references org,
  name                   text collate "C" not null,
  slot                   int check (slot between 1 and 1023), -- null once the sandbox is removed
  state                  text not null default 'cold',
  state_since            timestamptz not null default now(),
  url_auth               text not null check (url_auth in ('sprite', 'public')),
  private_access         text not null check (private_access in ('admins', 'org_users')),
  labels                 text[] not null,
  environment            jsonb not null, -- variables of every command and service
  memory_mb              int not null,
  cpus                   double precision not null,
  storage_gb             int not null,
  region                 text not null,
  network_policy         jsonb not null default '{"rules":[]}',
  privileges             jsonb,
  resources              jsonb,
  checkpoints            int not null default 0, -- the last checkpoint number; numbers are never reused
  source_id              text, -- the checkpoint its filesystem was restored from
  used_bytes             bigint, -- size of the writable layers at measured_at
  measured_at            timestamptz,
  held_until             timestamptz, -- a restart is in progress until then, and requests to the sandbox wait
  created_at             timestamptz not null default now(),
  updated_at             timestamptz not null default now(),
  last_running_at        timestamptz,
  -- The image it is created from instead of the host's programs: reference, digest, default command, and the error if
  -- the pull failed.
  image                  jsonb,
  automatic_checkpoints  int not null default 0 -- the last automatic checkpoint number; numbers are never reused
);
-- Sandbox names are part of URLs, so they share one namespace across organizations.
create unique index sandbox_name on sandbox (name text_pattern_ops) where state in ('cold', 'running');
create index sandbox_org_name on sandbox (org_id, name) where state in ('cold', 'running');
-- The index is partial so that finding the lowest free slot reads only the slots in use.
create unique index sandbox_slot on sandbox (slot) where slot is not null;
create trigger sandbox_slot after insert or delete or update of slot on sandbox
  for each row execute function hold_slot();

create table service (
  sandbox_id  text not null references sandbox,
  name        text collate "C" not null,
  definition  json not null, -- cmd, args, needs, env, dir; json and not jsonb because it is only read as a whole
  http_port   int check (http_port between 1 and 65535),
  health      json,
  wanted      boolean not null default true, -- false once a caller stopped it, also after a restart of the sandbox
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  ready_at    timestamptz, -- when it was last ready, for health checks that the edge cannot run itself
  failure     text, -- why the service behind the sandbox URL failed; null while it works
  primary key (sandbox_id, name)
);
create unique index service_http_port on service (sandbox_id) where http_port is not null;

create table checkpoint (
  sandbox_id  text not null references sandbox,
  id          text collate "C" not null, -- v1, v2, …, or auto-1, auto-2, …
  is_auto     boolean not null,
  comment     text not null,
  source_id   text, -- the checkpoint the filesystem was restored from
  restores    text, -- for an automatic checkpoint: the checkpoint whose restore it precedes
  state       text not null check (state in ('making', 'ready', 'failed', 'removing')),
  failure     text, -- one sentence, shown to callers that wait for it
  number      bigint generated always as identity, -- the order of the requests
  created_at  timestamptz not null default now(),
  primary key (sandbox_id, id)
);
-- One at a time per sandbox, because the copy slows down the sandbox.
create unique index checkpoint_making on checkpoint (sandbox_id) where state = 'making';

-- Tasks keep a sandbox awake until they expire. Expired rows count as absent.
create table task (
  sandbox_id  text not null references sandbox,
  name        text collate "C" not null,
  started_at  timestamptz not null default now(),
  expires_at  timestamptz not null,
  primary key (sandbox_id, name)
);

create function notify_sandbox_change() returns trigger language plpgsql as $$
begin
  perform pg_notify('sandbox_change', 'sandbox ' || new.id);
  return null;
end $$;
create trigger sandbox_watch after insert or update of state, updated_at on sandbox
  for each row execute function notify_sandbox_change();

create function notify_checkpoint_change() returns trigger language plpgsql as $$
begin
  perform pg_notify('sandbox_change', 'checkpoint ' || coalesce(new.sandbox_id, old.sandbox_id));
  return null;
end $$;
create trigger checkpoint_watch after insert or update of state or delete on checkpoint
  for each row execute function notify_checkpoint_change();

-- The edge reloads the route of the sandbox.
create function notify_sandbox_route() returns trigger language plpgsql as $$
begin
  perform pg_notify('route', 'sandbox ' || case tg_table_name
    when 'sandbox' then coalesce(to_jsonb(new), to_jsonb(old)) ->> 'id'
    else coalesce(to_jsonb(new), to_jsonb(old)) ->> 'sandbox_id' end);
  return null;
end $$;
create trigger sandbox_route
  after insert or delete or update of name, org_id, slot, state, url_auth, private_access on sandbox
  for each row execute function notify_sandbox_route();
-- An update that writes the same port is announced too, because the health check may have changed.
create trigger service_route after insert or delete or update of http_port, wanted, health, ready_at, failure on service
  for each row execute function notify_sandbox_route();

-- Quotas: how much each organization may create, and how much it has.
--
-- Triggers count, so that every statement that creates or deletes something counts, whoever sends it. Most of them are
-- deferred to the commit: the lock on an organization's usage is then always the last one that a transaction takes, which
-- excludes deadlocks with the locks on resources, and it is held only for the duration of the commit.

-- The limits for organizations without their own, written by the control plane when it starts. Null means unlimited.
create table quota_default (
  quota  text primary key,
  max    bigint check (max >= 0)
);

create table org_quota (
  org_id  text not null references org,
  quota   text not null,
  max     bigint check (max >= 0), -- null means unlimited
  primary key (org_id, quota)
);

create table org_usage (
  org_id  text not null references org,
  quota   text not null,
  used    bigint not null,
  primary key (org_id, quota)
) with (fillfactor = 50);

-- The images that were pulled for an organization. A row remains until the image may be removed from the host.
create table org_image (
  org_id     text not null references org,
  reference  text not null,
  used_at    timestamptz not null default now(), -- when something was last created with it
  primary key (org_id, reference)
);
insert into org_image (org_id, reference)
  select org_id, config ->> 'image' from machine join app on app.id = app_id where machine.slot is not null
  union select org_id, image ->> 'reference' from sandbox where slot is not null and image is not null;

-- Those that a caller asked for. Only they count: the platform's own must not fail because of a quota.
alter table backup add requested boolean not null default false;
alter table snapshot add requested boolean not null default false;

-- Expired tokens do not count. They are marked when the organization creates another token.
alter table token add expired boolean not null default false;

-- Deleted volumes are kept for a day, as long as they take no more space than the organization may reserve.
create index volume_pending on volume (app_id) where state = 'pending_destroy';

create function quota_limit(owner text, name text) returns bigint language sql stable as $$
  select case when own.org_id is null then standard.max else own.max end
  from quota_default standard left join org_quota own on own.org_id = owner and own.quota = standard.quota
  where standard.quota = name
$$;

-- Serializes the changes of an organization's usage. What they depend on must be read after this.
create function lock_usage(owner text) returns void language sql as $$
  select pg_advisory_xact_lock(hashtextextended(owner, 7450489)) -- the seed keeps other hashed locks apart
$$;

-- Fails with SQLSTATE BQ001 when the organization would have more than its quota.
create function add_usage(owner text, name text, amount bigint) returns void language plpgsql as $$
declare
  total bigint;
begin
  if amount = 0 then return; end if;
  insert into org_usage as usage (org_id, quota, used) values (owner, name, amount)
    on conflict (org_id, quota) do update set used = usage.used + excluded.used returning used into total;
  if amount > 0 and total > quota_limit(owner, name) then
    raise exception 'quota % of organization % exceeded', name, owner using errcode = 'BQ001',
      detail = json_build_object('organization', (select slug from org where id = owner), 'quota', name,
        'limit', quota_limit(owner, name), 'used', total - amount, 'asked', amount)::text;
  end if;
end $$;

-- Whether a row counts. What is being deleted does not.
create function counts(machine) returns boolean language sql immutable as $$
  select $1.state not in ('destroying', 'destroyed') $$;
create function counts(volume) returns boolean language sql immutable as $$
  select $1.state not in ('pending_destroy', 'destroying', 'destroyed') $$;
create function counts(snapshot) returns boolean language sql immutable as $$
  select $1.requested and $1.state in ('creating', 'created') $$;
create function counts(ip) returns boolean language sql immutable as $$ select true $$;
create function counts(host) returns boolean language sql immutable as $$ select true $$;
create function counts(secret) returns boolean language sql immutable as $$ select true $$;
create function counts(secret_key) returns boolean language sql immutable as $$ select true $$;
create function counts(cluster) returns boolean language sql immutable as $$
  select $1.state not in ('deleting', 'deleted', 'purged') and not $1.scratch $$;
create function counts(cluster_user) returns boolean language sql immutable as $$ select true $$;
create function counts(backup) returns boolean language sql immutable as $$
  select $1.requested and $1.state in ('queued', 'running', 'completed') $$;
create function counts(sandbox) returns boolean language sql immutable as $$
  select $1.state in ('cold', 'running') $$;
create function counts(checkpoint) returns boolean language sql immutable as $$
  select not $1.is_auto and $1.state in ('making', 'ready') $$;
create function counts(token) returns boolean language sql immutable as $$
  select $1.org_id is not null and not $1.inside and $1.revoked_at is null and not $1.expired $$;
create function counts(network) returns boolean language sql immutable as $$ select true $$;
create function counts(org_image) returns boolean language sql immutable as $$ select true $$;

-- The disk space that a row reserves, in GB; null where the kind of resource reserves none.
create function reserved_gb(anyelement) returns int language sql immutable as $$ select null::int $$;
create function reserved_gb(volume) returns int language sql immutable as $$ select $1.size_gb $$;
create function reserved_gb(cluster) returns int language sql immutable as $$ select $1.disk_size_gb $$;
create function reserved_gb(sandbox) returns int language sql immutable as $$ select $1.storage_gb $$;

-- The organization of a row. It never changes.
create function org_of_app(app_id text) returns text language sql stable as $$
  select org_id from app where id = app_id $$;
create function org_of(machine) returns text language sql stable as $$ select org_of_app($1.app_id) $$;
create function org_of(volume) returns text language sql stable as $$ select org_of_app($1.app_id) $$;
create function org_of(snapshot) returns text language sql stable as $$
  select org_of_app(app_id) from volume where id = $1.volume_id $$;
create function org_of(ip) returns text language sql stable as $$ select org_of_app($1.app_id) $$;
create function org_of(host) returns text language sql stable as $$ select org_of_app($1.app_id) $$;
create function org_of(secret) returns text language sql stable as $$ select org_of_app($1.app_id) $$;
create function org_of(secret_key) returns text language sql stable as $$ select org_of_app($1.app_id) $$;
create function org_of(cluster) returns text language sql stable as $$ select $1.org_id $$;
create function org_of(cluster_user) returns text language sql stable as $$
  select org_id from cluster where id = $1.cluster_id $$;
create function org_of(backup) returns text language sql stable as $$
  select org_id from cluster where id = $1.cluster_id $$;
create function org_of(sandbox) returns text language sql stable as $$ select $1.org_id $$;
create function org_of(checkpoint) returns text language sql stable as $$
  select org_id from sandbox where id = $1.sandbox_id $$;
create function org_of(token) returns text language sql stable as $$ select $1.org_id $$;
create function org_of(network) returns text language sql stable as $$ select $1.org_id $$;
create function org_of(org_image) returns text language sql stable as $$ select $1.org_id $$;

-- Whether the owner of a row exists. The deletion of an app, a cluster or a sandbox subtracts all that it owns at once.
create function has_owner(anyelement) returns boolean language sql stable as $$ select true $$;
create function has_app(app_id text) returns boolean language sql stable as $$
  select exists (select from app where id = app_id and state = 'active') $$;
create function has_owner(machine) returns boolean language sql stable as $$ select has_app($1.app_id) $$;
create function has_owner(volume) returns boolean language sql stable as $$ select has_app($1.app_id) $$;
create function has_owner(snapshot) returns boolean language sql stable as $$
  select has_app(app_id) from volume where id = $1.volume_id $$;
create function has_owner(ip) returns boolean language sql stable as $$ select has_app($1.app_id) $$;
create function has_owner(host) returns boolean language sql stable as $$ select has_app($1.app_id) $$;
create function has_owner(secret) returns boolean language sql stable as $$ select has_app($1.app_id) $$;
create function has_owner(secret_key) returns boolean language sql stable as $$ select has_app($1.app_id) $$;
create function has_owner(cluster_user) returns boolean language sql stable as $$
  select counts(cluster) from cluster where id = $1.cluster_id $$;
create function has_owner(checkpoint) returns boolean language sql stable as $$
  select counts(sandbox) from sandbox where id = $1.sandbox_id $$;

-- The argument is the name of the quota.
create function count_row() returns trigger language plpgsql as $$
declare
  owner text;
  is_owned boolean;
  amount int := 0;
  gb int := 0;
begin
  if tg_op <> 'DELETE' then
    if counts(new) then amount := 1; gb := coalesce(reserved_gb(new), 0); end if;
  end if;
  if tg_op <> 'INSERT' then
    if counts(old) then amount := amount - 1; gb := gb - coalesce(reserved_gb(old), 0); end if;
  end if;
  if amount = 0 and gb = 0 then return null; end if;
  if tg_op = 'DELETE' then owner := org_of(old); else owner := org_of(new); end if;
  if owner is null then return null; end if; -- a root token, or the owner was deleted in the same transaction
  perform lock_usage(owner);
  if tg_op = 'DELETE' then is_owned := has_owner(old); else is_owned := has_owner(new); end if;
  if is_owned is not true then return null; end if;
  perform add_usage(owner, tg_argv[0], amount);
  perform add_usage(owner, 'disk_gb', gb);
  return null;
end $$;

create constraint trigger machine_usage after insert or delete or update of state on machine
  deferrable initially deferred for each row execute function count_row('machines');
create constraint trigger volume_usage after insert or delete or update of state, size_gb on volume
  deferrable initially deferred for each row execute function count_row('volumes');
create constraint trigger snapshot_usage after insert or delete or update of state on snapshot
  deferrable initially deferred for each row execute function count_row('snapshots');
create constraint trigger ip_usage after insert or delete on ip
  deferrable initially deferred for each row execute function count_row('addresses');
create constraint trigger host_usage after insert or delete on host
  deferrable initially deferred for each row execute function count_row('hostnames');
create constraint trigger secret_usage after insert or delete on secret
  deferrable initially deferred for each row execute function count_row('secrets');
create constraint trigger secret_key_usage after insert or delete on secret_key
  deferrable initially deferred for each row execute function count_row('secrets');
create constraint trigger cluster_usage after insert or delete or update of state, disk_size_gb on cluster
  deferrable initially deferred for each row execute function count_row('clusters');
create constraint trigger cluster_user_usage after insert or delete on cluster_user
  deferrable initially deferred for each row execute function count_row('database_users');
create constraint trigger backup_usage after insert or delete or update of state on backup
  deferrable initially deferred for each row execute function count_row('backups');
create constraint trigger sandbox_usage after insert or delete or update of state, storage_gb on sandbox
  deferrable initially deferred for each row execute function count_row('sandboxes');
create constraint trigger checkpoint_usage after insert or delete or update of state on checkpoint
  deferrable initially deferred for each row execute function count_row('checkpoints');
create constraint trigger token_usage after insert or delete or update of revoked_at, expired on token
  deferrable initially deferred for each row execute function count_row('tokens');
create constraint trigger network_usage after insert or delete on network
  deferrable initially deferred for each row execute function count_row('networks');
create constraint trigger org_image_usage after insert or delete on org_image
  deferrable initially deferred for each row execute function count_row('images');

-- What the apps own. The triggers above count the same rows.
create view app_usage as
  select app_id, 'machines' as quota, 1 as amount from machine where counts(machine)
  union all select app_id, 'volumes', 1 from volume where counts(volume)
  union all select app_id, 'disk_gb', size_gb from volume where counts(volume)
  union all select app_id, 'snapshots', 1 from snapshot join volume on volume.id = volume_id where counts(snapshot)
  union all select app_id, 'addresses', 1 from ip
  union all select app_id, 'hostnames', 1 from host
  union all select app_id, 'secrets', 1 from secret
  union all select app_id, 'secrets', 1 from secret_key;

-- The usage as it is, counted from the rows; `org_usage` has the same numbers without reading them.
create view counted_usage as
  select org_id, quota, sum(amount)::bigint as used from (
    select org_id, 'apps' as quota, 1 as amount from app where state = 'active'
    union all select org_id, app_usage.quota, amount from app_usage join app on app.id = app_id where state = 'active'
    union all select org_id, 'clusters', 1 from cluster where counts(cluster)
    union all select org_id, 'disk_gb', disk_size_gb from cluster where counts(cluster)
    union all select org_id, 'database_users', 1 from cluster_user join cluster on cluster.id = cluster_id
      where counts(cluster)
    union all select org_id, 'backups', 1 from backup join cluster on cluster.id = cluster_id where counts(backup)
    union all select org_id, 'sandboxes', 1 from sandbox where counts(sandbox)
    union all select org_id, 'disk_gb', storage_gb from sandbox where counts(sandbox)
    union all select org_id, 'checkpoints', 1 from checkpoint join sandbox on sandbox.id = sandbox_id
      where counts(checkpoint) and counts(sandbox)
    union all select org_id, 'tokens', 1 from token where counts(token)
    union all select org_id, 'networks', 1 from network
    union all select org_id, 'images', 1 from org_image
    union all select org_id, 'slots', 1 from machine join app on app.id = app_id where slot is not null
    union all select org_id, 'slots', 1 from sandbox where slot is not null) each
  group by org_id, quota;

-- Apps are inserted in batches, so one statement counts once per organization. The total of a list of apps comes from the
-- same number, which replaces the sharded counter.
drop trigger apps_counted on app;
drop trigger app_counted on app;
drop function count_new_apps();
drop function count_app();
drop table app_count;

create function count_new_apps() returns trigger language plpgsql as $$
declare
  made_in record;
begin
  -- The order is the same in every transaction, so that two of them do not wait for each other.
  for made_in in select org_id, count(*) as apps from made where state = 'active' group by org_id order by org_id loop
    perform lock_usage(made_in.org_id);
    perform add_usage(made_in.org_id, 'apps', made_in.apps);
  end loop;
  return null;
end $$;
create trigger apps_usage after insert on app referencing new table as made
  for each statement execute function count_new_apps();

create function subtract_app() returns trigger language plpgsql as $$
declare
  owned record;
begin
  perform lock_usage(old.org_id);
  perform add_usage(old.org_id, 'apps', -1);
  for owned in select quota, sum(amount) as amount from app_usage where app_id = old.id group by quota loop
    perform add_usage(old.org_id, owned.quota, -owned.amount);
  end loop;
  return null;
end $$;
create constraint trigger app_usage after update of state on app deferrable initially deferred
  for each row when (old.state = 'active' and new.state <> 'active') execute function subtract_app();

create function subtract_owned() returns trigger language plpgsql as $$
begin
  perform lock_usage(old.org_id);
  if tg_table_name = 'sandbox' then
    perform add_usage(old.org_id, 'checkpoints',
      -(select count(*) from checkpoint where sandbox_id = old.id and counts(checkpoint)));
  else
    perform add_usage(old.org_id, 'database_users', -(select count(*) from cluster_user where cluster_id = old.id));
  end if;
  return null;
end $$;
create constraint trigger cluster_owned_usage after update of state on cluster deferrable initially deferred
  for each row when (counts(old) and not counts(new)) execute function subtract_owned();
create constraint trigger sandbox_owned_usage after update of state on sandbox deferrable initially deferred
  for each row when (counts(old) and not counts(new)) execute function subtract_owned();

-- Boxes that are being removed have a slot for some seconds longer, and all organizations share 1,023 of them. Therefore an
-- organization can have at most twice as many slots as machines and sandboxes, however fast it creates and deletes them.
-- Fails with SQLSTATE BQ002, because waiting helps.
create function count_slot() returns trigger language plpgsql as $$
declare
  owner text;
  total bigint;
  max bigint;
begin
  if tg_op = 'DELETE' then owner := org_of(old); else owner := org_of(new); end if;
  perform lock_usage(owner);
  if tg_op <> 'DELETE' then
    if new.slot is not null then perform add_usage(owner, 'slots', 1); end if;
  end if;
  if tg_op <> 'INSERT' then
    if old.slot is not null then perform add_usage(owner, 'slots', -1); end if;
  end if;
  if tg_op = 'INSERT' then
    select used into total from org_usage where org_id = owner and quota = 'slots';
    max := 2 * (quota_limit(owner, 'machines') + quota_limit(owner, 'sandboxes'));
    if total > max then
      raise exception 'slots of organization % exceeded', owner using errcode = 'BQ002',
        detail = json_build_object('organization', (select slug from org where id = owner), 'quota', 'slots',
          'limit', max, 'used', total - 1, 'asked', 1)::text;
    end if;
  end if;
  return null;
end $$;
create constraint trigger machine_slot_usage after insert or delete or update of slot on machine
  deferrable initially deferred for each row execute function count_slot();
create constraint trigger sandbox_slot_usage after insert or delete or update of slot on sandbox
  deferrable initially deferred for each row execute function count_slot();

create function note_image() returns trigger language plpgsql as $$
declare
  reference text := case tg_table_name when 'machine' then to_jsonb(new) -> 'config' ->> 'image'
    else to_jsonb(new) -> 'image' ->> 'reference' end;
begin
  perform lock_usage(org_of(new));
  insert into org_image (org_id, reference) values (org_of(new), reference)
    on conflict on constraint org_image_pkey do update set used_at = now();
  return null;
end $$;
create constraint trigger machine_image_insert after insert on machine deferrable initially deferred
  for each row when (new.config ->> 'image' is not null) execute function note_image();
create constraint trigger machine_image_update after update of config on machine deferrable initially deferred
  for each row when (new.config ->> 'image' <> old.config ->> 'image') execute function note_image();
create constraint trigger sandbox_image after insert on sandbox deferrable initially deferred
  for each row when (new.image is not null) execute function note_image();

insert into org_usage (org_id, quota, used) select org_id, quota, used from counted_usage;

-- What the edge may read and request. Its role has rights on the views and functions of this file, and on single columns of
-- other tables; src/store/edge-role.ts grants them at each start. Functions run with the rights of the owner.

-- Machines without what only the control plane needs: environment, secrets, lease, and the headers of checks, which may
-- contain passwords.
create view machine_route as
  select id, app_id, instance_id, state, state_since, region, slot, network_number, cordoned,
    (select coalesce(jsonb_agg(case jsonb_typeof(service -> 'checks') when 'array' then jsonb_set(service, '{checks}', (
         select coalesce(jsonb_agg("check" - 'headers' order by place), '[]')
         from jsonb_array_elements(service -> 'checks') with ordinality as listed ("check", place)
         where jsonb_typeof("check") = 'object'))
       else service end order by number), '[]')
     from jsonb_array_elements(config -> 'services') with ordinality as offered (service, number)) as services,
    (select jsonb_object_agg(name, "check" - 'headers')
     from jsonb_each(config -> 'checks') as named (name, "check") where jsonb_typeof("check") = 'object') as checks,
    coalesce(config -> 'metadata', '{}') as metadata,
    coalesce(not (config -> 'disable_machine_autostart')::boolean, true) as autostarts,
    coalesce(config -> 'dns' -> 'skip_registration', 'false') <> 'true' as listed
  from machine where machine.state <> 'destroyed';

-- What the edge asks the control plane to do. The rows may be lost in a crash, as the edge repeats its requests.
create unlogged table edge_request (
  command       text not null check (command in ('wake_sandbox', 'wake_machine', 'stop_machine', 'suspend_machine')),
  resource_id   text not null,
  requested_at  timestamptz not null default now(),
  primary key (command, resource_id)
);

-- Requests for resources that do not exist are ignored, which bounds the size of the table.
create function request_from_edge(wanted text, id text) returns void
language plpgsql security definer set search_path = public, pg_temp as $$
begin
  if (wanted = 'wake_sandbox' and exists (select from sandbox where sandbox.id = request_from_edge.id))
    or (wanted <> 'wake_sandbox' and exists (select from machine where machine.id = request_from_edge.id))
  then
    insert into edge_request (command, resource_id) values (wanted, id)
      on conflict (command, resource_id) do update set requested_at = now();
    perform pg_notify('edge_request', '');
  end if;
end $$;

-- Finds the valid token with a hash. The edge can check tokens that it is shown, but cannot list any.
create function find_token_for_edge(shown bytea)
returns table (token_id text, token_kind text, token_org text, token_sandbox text)
language sql stable security definer set search_path = public, pg_temp as $$
  select id, kind, org_id, sandbox from token
  where hash = shown and kind <> 'app' and revoked_at is null and (expires_at is null or expires_at > now())
$$;

-- Tells which tokens of open connections are still valid.
create function list_token_expiries_for_edge(shown bytea[])
returns table (token_hash bytea, token_expires_at timestamptz)
language sql stable security definer set search_path = public, pg_temp as $$
  select hash, expires_at from token
  where hash = any(shown) and kind <> 'app' and revoked_at is null and (expires_at is null or expires_at > now())
$$;

create function put_machine_loads(reporter int, ids text[], loads int[]) returns void
language sql security definer set search_path = public, pg_temp as $$
  insert into machine_load (machine_id, worker, load)
  select id, reporter::text, load from unnest(ids, loads) given (id, load)
  where reporter between 0 and 63 and load >= 0 and id in (select machine.id from machine)
  on conflict (machine_id, worker) do update set load = excluded.load, at = now()
$$;

revoke execute on function request_from_edge, find_token_for_edge, list_token_expiries_for_edge, put_machine_loads from public;

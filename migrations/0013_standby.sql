-- A machine that was created without being started is `stopped`. Requests start stopped machines, but not those that stand by
-- for others.
create or replace view machine_route as
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
    coalesce(not (config -> 'disable_machine_autostart')::boolean, true)
      and coalesce(config -> 'standbys', '[]') in ('[]', 'null') as autostarts,
    coalesce(config -> 'dns' -> 'skip_registration', 'false') <> 'true' as listed
  from machine where machine.state <> 'destroyed';

-- What a machine reports about its program.
alter table machine
  add column last_exit jsonb,              -- how its program last exited since the last start
  add column next_restart_at timestamptz,  -- when the supervisor starts the program again after that exit
  add column warnings text[];              -- what its owner should know while it runs; null until the program was looked at

-- Options of resolv.conf are stored as objects.
create function option_objects(config jsonb) returns jsonb language sql immutable as $$
  select jsonb_set(config, '{dns,options}', (
    select coalesce(jsonb_agg(case jsonb_typeof(option)
        when 'string' then jsonb_strip_nulls(jsonb_build_object(
          'name', split_part(option #>> '{}', ':', 1), 'value', nullif(split_part(option #>> '{}', ':', 2), '')))
        else option end order by number), '[]')
    from jsonb_array_elements(config #> '{dns,options}') with ordinality as listed (option, number)))
$$;
update machine set config = option_objects(config)
  where state <> 'destroyed' and jsonb_path_exists(config, '$.dns.options[*] ? (@.type() == "string")');
update machine_version set config = option_objects(config)
  where jsonb_path_exists(config, '$.dns.options[*] ? (@.type() == "string")');
drop function option_objects;

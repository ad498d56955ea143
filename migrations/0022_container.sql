-- Containers of machines.
alter table machine
  add column container_images jsonb, -- the resolved images of its containers by their names; null without containers
  add column containers jsonb;       -- the states of its containers; null while it does not run

-- The images of containers count like those of machines. A fixed order keeps two transactions from waiting for each other.
create or replace function note_image() returns trigger language plpgsql as $$
declare
  record jsonb := to_jsonb(new);
begin
  perform lock_usage(org_of(new));
  insert into org_image (org_id, reference)
    select distinct org_of(new), named from (
      select case tg_table_name when 'machine' then record -> 'config' ->> 'image' else record -> 'image' ->> 'reference' end
      union all
      select container ->> 'image' from jsonb_path_query(record, '$.config.containers[*]') container
        where tg_table_name = 'machine') image (named)
    order by named
    on conflict on constraint org_image_pkey do update set used_at = now();
  return null;
end $$;
drop trigger machine_image_update on machine;
create constraint trigger machine_image_update after update of config on machine deferrable initially deferred
  for each row when (new.config ->> 'image' <> old.config ->> 'image'
    or new.config -> 'containers' is distinct from old.config -> 'containers') execute function note_image();

/** Inserts a machine that has no process, for tests that only count machines. Parameters: id, app id, state. */
export const insertMachineRow = `
  with net as (
    insert into network (org_id, name) select org_id, network from app where id = $2
    on conflict (org_id, name) do update set name = excluded.name returning number)
  insert into machine (id, app_id, name, state, region, instance_id, config, network_number, wanted)
  select $1, $2, $1, $3, 'local', 'v' || $1, '{"image": "none"}', number, false from net`

-- Addresses of a cluster in private networks follow from its number; never given twice.
alter table cluster add number int generated always as identity unique;

-- What the edge leads machines to clusters by is told as it is committed.
create function tell_cluster_route() returns trigger language plpgsql as $$
begin
  perform pg_notify('route', 'cluster ' || case tg_table_name
    when 'cluster' then to_jsonb(new) ->> 'id'
    when 'attachment' then coalesce(to_jsonb(new), to_jsonb(old)) ->> 'cluster_id'
    else '*' end); -- all of an organization
  return null;
end $$;

create trigger cluster_route after update of state, direct_port, pooler_port on cluster
  for each row when (old.state = 'ready' or new.state = 'ready') execute function tell_cluster_route();
create trigger attachment_route after insert or delete on attachment
  for each row execute function tell_cluster_route();
create trigger network_cluster_route after insert on network
  for each row execute function tell_cluster_route();

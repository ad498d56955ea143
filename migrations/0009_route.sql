-- What the edge routes by is told as it is committed, named by what it leads to.
create function tell_route() returns trigger language plpgsql as $$
begin
  perform pg_notify('route', 'sandbox ' || case tg_table_name
    when 'sandbox' then coalesce(to_jsonb(new), to_jsonb(old)) ->> 'id'
    else coalesce(to_jsonb(new), to_jsonb(old)) ->> 'sandbox_id' end);
  return null;
end $$;

create trigger sandbox_route after insert or delete or update of name, org_id, slot, state, url_auth on sandbox
  for each row execute function tell_route();
-- A definition that is written anew with the same port changes nothing here, but its answer may be another.
create trigger service_route after insert or delete or update of http_port, wanted, health on service
  for each row execute function tell_route();

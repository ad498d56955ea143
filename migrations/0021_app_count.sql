-- Apps that are made by one statement are counted at once.
drop trigger app_counted on app;
create trigger app_counted after delete or update of state on app for each row execute function count_app();

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

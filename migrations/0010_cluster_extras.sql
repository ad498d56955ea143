-- Whether a cluster ever had an attachment, a restore or a finished drill. Most have none, and a reader of one looks for
-- none then. Set for good with the first: a reader looks for itself whether there still is one.
alter table cluster
  add column attached boolean not null default false,
  add column restored boolean not null default false,
  add column drilled boolean not null default false;

update cluster set
  attached = exists (select from attachment where cluster_id = cluster.id),
  restored = exists (select from restore where cluster_id = cluster.id),
  drilled = exists (select from drill where cluster_id = cluster.id and state = 'done');

create function note_cluster_extra() returns trigger language plpgsql as $$
begin
  if tg_table_name = 'attachment' then update cluster set attached = true where id = new.cluster_id and not attached;
  elsif tg_table_name = 'restore' then update cluster set restored = true where id = new.cluster_id and not restored;
  else update cluster set drilled = true where id = new.cluster_id and not drilled;
  end if;
  return null;
end $$;
create trigger attachment_noted after insert on attachment for each row execute function note_cluster_extra();
create trigger restore_noted after insert on restore for each row execute function note_cluster_extra();
create trigger drill_noted after insert or update of state on drill for each row
  when (new.state = 'done') execute function note_cluster_extra();

-- Addresses that were given back, so that they are given again after all others: names out there may still lead to them.
create table released_ip (
  ip           inet primary key,
  released_at  timestamptz not null default now()
);
create index released_ip_time on released_ip (released_at);

create function note_ip() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    delete from released_ip where ip = new.ip;
  elsif not exists (select 1 from ip where ip = old.ip) then
    insert into released_ip (ip) values (old.ip) on conflict (ip) do update set released_at = now();
  end if;
  return null;
end $$;
create trigger ip_given after insert or delete on ip for each row execute function note_ip();

-- How many addresses of services a private network has given; never the same again.
alter table network add services int not null default 0;

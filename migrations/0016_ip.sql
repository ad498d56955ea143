-- Addresses of apps. A shared one is of several apps, told apart by the names that clients ask for.
create table ip (
  app_id          text not null references app,
  ip              inet not null,
  type            text not null, -- v4, v6, shared_v4, private_v6
  region          text not null default 'global',
  shared          boolean not null default false,
  network_number  int references network, -- of a private address: who can reach it
  service_name    text,
  created_at      timestamptz not null default now(),
  primary key (app_id, ip)
);
create unique index ip_dedicated on ip (ip) where not shared;

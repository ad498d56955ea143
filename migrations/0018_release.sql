-- What clients that deploy note down: which image an app was given, when, and how that went.
create table release (
  id          text primary key,
  app_id      text not null references app,
  version     int not null,
  status      text not null,
  image       text not null,
  strategy    text not null,
  definition  json not null, -- as it came: never looked into
  created_by  text not null, -- the token, as people read it
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  unique (app_id, version)
);

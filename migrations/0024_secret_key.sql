-- Keys that the platform uses for an app without handing them out.
create table secret_key (
  app_id      text not null references app,
  name        text collate "C" not null,
  type        text not null,
  key         bytea not null, -- encrypted
  public_key  bytea,
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  primary key (app_id, name)
);

create table secret (
  app_id      text not null references app,
  name        text collate "C" not null,
  value       bytea not null, -- encrypted
  digest      text not null,  -- keyed, so that short values cannot be found by trying
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  primary key (app_id, name)
);

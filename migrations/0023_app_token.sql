-- Tokens for one app, such as a build uses to deploy it.
alter table token
  add app_id text references app,
  drop constraint token_kind_check,
  add constraint token_kind_check check (kind in ('root', 'org', 'read', 'sandbox', 'app')),
  add check ((app_id is not null) = (kind = 'app'));
create index token_app on token (app_id) where app_id is not null;

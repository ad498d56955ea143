-- The secrets that were set with an attachment and go with it, if they are still what was set.
create table attachment_secret (
  cluster_id text not null,
  app_id     text not null,
  name       text collate "C" not null,
  digest     text not null,
  primary key (cluster_id, app_id, name),
  foreign key (cluster_id, app_id) references attachment on delete cascade
);

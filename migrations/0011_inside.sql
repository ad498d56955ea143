-- A sandbox asks about itself with a token of the platform's own: its id is that of the sandbox, nobody is shown it, and
-- it goes when the sandbox does.
alter table token add inside boolean not null default false;
alter table idempotency drop constraint idempotency_token_id_fkey,
  add foreign key (token_id) references token on delete cascade;

-- What asks for a sandbox to be kept awake, and until when. What has expired is as good as absent.
create table task (
  sandbox_id  text not null references sandbox,
  name        text collate "C" not null,
  started_at  timestamptz not null default now(),
  expires_at  timestamptz not null,
  primary key (sandbox_id, name)
);

-- What a drill query asks about may not have been there before the query was.
alter table cluster add column drill_query_at timestamptz not null default now();

-- What moves after the last byte has arrived: checksums are read, and log is replayed that holds no commit.
alter table backup add column bytes_verified bigint not null default 0;
alter table restore add column bytes_verified bigint not null default 0, add column replayed_lsn pg_lsn;

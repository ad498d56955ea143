-- How long backups of a cluster are kept; null for the setting of the platform.
alter table cluster add column retention_days int check (retention_days > 0);

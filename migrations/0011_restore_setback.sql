-- How often the copy or the replay of a restore began again or fell back, because it was interrupted.
alter table restore add column setbacks int not null default 0;

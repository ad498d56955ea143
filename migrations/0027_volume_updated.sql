alter table volume add updated_at timestamptz not null default now();
update volume set updated_at = state_since;
create index volume_updated on volume (updated_at, id);

alter function stamp_machine() rename to stamp_change;
create trigger volume_stamped
  before update of state, size_gb, snapshot_retention, auto_backup, machine_id, failure on volume
  for each row execute function stamp_change();

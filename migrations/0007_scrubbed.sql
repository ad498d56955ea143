alter table backup
  add column scrubbed_at timestamptz; -- when a scrub last read it from the disk and found it right

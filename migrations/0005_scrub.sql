alter table backup
  add column scrub_started_at timestamptz, -- its checksums are being read again
  add column damaged_at timestamptz;       -- when the last scrub found it damaged

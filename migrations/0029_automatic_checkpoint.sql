-- The number of the last automatic one, so that a number is never given twice.
alter table sandbox add automatic_checkpoints int not null default 0;
update sandbox set automatic_checkpoints = numbered.last
  from (select sandbox_id, max(substring(id from 6)::int) as last from checkpoint where is_auto group by 1) numbered
  where numbered.sandbox_id = sandbox.id;

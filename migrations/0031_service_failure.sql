-- Why the service that the URL of a sandbox leads to failed, when it was last looked at; null when it had not.
alter table service add failure text;
drop trigger service_route on service;
create trigger service_route after insert or delete or update of http_port, wanted, health, ready_at, failure on service
  for each row execute function tell_route();

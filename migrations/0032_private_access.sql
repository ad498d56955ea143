-- Whose tokens open a URL is known to the edge as well.
drop trigger sandbox_route on sandbox;
create trigger sandbox_route
  after insert or delete or update of name, org_id, slot, state, url_auth, private_access on sandbox
  for each row execute function tell_route();

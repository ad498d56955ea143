-- The organization of an app is read by the statement that inserts it, and organizations are never removed: checking it
-- once more with each app cost as much as two of its indexes. Identity columns hand out each number once by themselves.
alter table app drop constraint app_org_id_fkey;
alter table app drop constraint app_numeric_id_key;

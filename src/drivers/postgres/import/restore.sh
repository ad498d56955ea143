#!/bin/sh
# Restores the dump of an import into an empty database, with the rights of a schema admin, and compares the rows of each
# table with those of the source.
# Usage: restore.sh <directory of the client programs> <work directory>
# The connection is in the environment of libpq; SCHEMAS lists the schemas that exist already, one per line.
# Exit codes: 10 the dump is gone, 20 the dump cannot be read, 21 the restore failed, 22 the copy differs from the source,
# 23 an earlier run was interrupted.
umask 077
tools=$1
cd "$2/dump" && cd .. || exit 10
# After a reboot the job starts again, and finds what it has restored before.
[ ! -e restoring ] || exit 23
touch restoring || exit 10
query() { "$tools/psql" -XAtq -v ON_ERROR_STOP=1; }

# The platform creates extensions itself; the other entries need a superuser or name roles of the source.
"$tools/pg_restore" --list dump > /tmp/contents || exit 20
perl -ne '
  BEGIN { %exists = map { $_ => 1 } split /\n/, $ENV{SCHEMAS} }
  next if /^\d+; \d+ \d+ (?:COMMENT - )?(?:EXTENSION|EVENT TRIGGER|PUBLICATION|SUBSCRIPTION|USER MAPPING|FOREIGN DATA WRAPPER|DATABASE)\b/;
  next if /^\d+; \d+ \d+ (?:COMMENT - )?(?:ACL|DEFAULT ACL|SECURITY LABEL|PROCEDURAL LANGUAGE|DATABASE PROPERTIES)\b/;
  next if /^\d+; \d+ \d+ SCHEMA - (.*) \S+$/ && $exists{$1};
  print' /tmp/contents > /tmp/list || exit 20

{
  "$tools/pg_restore" --dbname="$PGDATABASE" --role=schema_admin --no-owner --no-privileges --no-tablespaces \
    --jobs="$JOBS" --use-list=/tmp/list --verbose dump
  echo $? > /tmp/code
} 2>&1 | perl -e "$REPORT" restore || exit 21
# Newer programs set parameters that an older server does not know, which REPORT ignores.
read -r code < /tmp/code
[ "$code" -le 1 ] || exit 21

query <<'SQL' || exit 21
select format('analyze %I.%I', nspname, relname) from pg_class join pg_namespace on pg_namespace.oid = relnamespace
  where relkind in ('r', 'p', 'm') and relowner = 'schema_admin'::regrole \gexec
SQL
query > copy.counts <<SQL || exit 21
$COUNT_ROWS \\gexec
SQL
cmp -s source.counts copy.counts && exit 0
diff source.counts copy.counts | sed -n 's/^< /in the source: /p; s/^> /in the copy: /p' | head -n 4
exit 22

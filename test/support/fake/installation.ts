// A PostgreSQL installation with extensions that the one from npm lacks. The extensions are stand-ins with the names and the
// control files of the Debian packages, because their libraries run on the PostgreSQL of that distribution only.
import { execFileSync } from 'node:child_process'
import { chmodSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'

const files: Record<string, string> = {
  'postgis.control': `comment = 'stand-in'\ndefault_version = '3.5.2'\nrelocatable = false\n`,
  'postgis--3.5.2.sql': `
    CREATE TYPE geometry AS (x float8, y float8);
    CREATE TABLE spatial_ref_sys (srid int PRIMARY KEY);
    CREATE FUNCTION postgis_version() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT '3.5 stand-in' $$;`,
  'postgis_topology.control': `comment = 'stand-in'\ndefault_version = '3.5.2'\nrelocatable = false\nschema = topology\nrequires = postgis\n`,
  'postgis_topology--3.5.2.sql': 'CREATE TABLE topology.layer (id int);',
  'vector.control': `comment = 'stand-in'\ndefault_version = '0.8.0'\nrelocatable = true\n`,
  'vector--0.8.0.sql': 'CREATE DOMAIN vector AS float4[];',
}

/** Returns the directory of the server programs. */
export function makeInstallation(directory: string, major: string): string {
  const native = new URL(`../../../node_modules/pg${major}-${process.platform}-${process.arch}/native`, import.meta.url)
    .pathname
  mkdirSync(directory, { recursive: true })
  chmodSync(directory, 0o755)
  execFileSync('cp', ['-r', '--reflink=auto', `${native}/.`, directory])
  const links: { source: string; target: string }[] = JSON.parse(readFileSync(`${native}/pg-symlinks.json`, 'utf8'))
  for (const { source, target } of links) {
    symlinkSync(relative(dirname(target), source), join(directory, relative('native', target)))
  }
  for (const [name, text] of Object.entries(files)) {
    writeFileSync(`${directory}/share/postgresql/extension/${name}`, text)
  }
  execFileSync('chmod', ['-R', 'a+rX', directory])
  return `${directory}/bin`
}

// Files and programs of the host.
import { type Attempt, denied, each } from './attempt.ts'

const places = ['{outside}/canary', '/etc/passwd', '{home}/token', '{data}/postgresql.auto.conf', '{data}/PG_VERSION']

const copies = each(denied, [
  ...places.map((place) => ['create temp table t (x text)', `copy t from '${place}'`]),
  ...places.map((place) => `copy (select 'evil') to '${place}'`),
  `copy (select 'evil') to '{outside}/written'`,
  ['create temp table t (x text)', `insert into t values ('evil')`, `copy t to '{outside}/written'`],
  ['create temp table t (x text)', `copy t to '{outside}/written' with (format binary)`],
  ['create temp table t (x text)', `copy t from '{outside}/canary' with (format csv, header)`],
  ['create temp table t (x text)', `copy t from program 'touch {outside}/written; id'`],
  ['create temp table t (x text)', `copy t to program 'cat > {outside}/written'`],
  `copy (select 1) to program 'touch {outside}/written'`,
  ['create temp table t (x text)', `do $$ begin copy t from program 'id'; end $$`],
  ['create temp table t (x text)', `do $$ begin execute 'copy t from ''/etc/passwd'''; end $$`],
  [
    `create function pg_temp.escape() returns void language plpgsql security definer
     as $$ begin copy (select 1) to program 'touch {outside}/written'; end $$`,
    'select pg_temp.escape()',
  ],
])

const largeObjects = [
  ...each(denied, [
    ...places.map((place) => `select lo_import('${place}')`),
    `select lo_import('/etc/passwd', 4711)`,
    `select lo_export(1, '{outside}/written')`,
    [
      `select lo_export(oid, '{outside}/written') from pg_largeobject_metadata limit 1`,
      `select lo_export(0, '/tmp/x')`,
    ],
  ]),
  // Writers may create large objects, which are data of the database.
  ...each(`${denied} ok`, [`select lo_from_bytea(0, 'x')`, 'select lo_create(0)', 'select lo_creat(-1)']),
  ...each(denied, [
    'select * from pg_largeobject',
    `insert into pg_largeobject values (1, 0, 'x')`,
    'update pg_largeobject_metadata set lomowner = 10',
    'delete from pg_largeobject_metadata',
    `select lo_put(loid, 0, 'x') from (select data, loid from pg_largeobject) t`,
  ]),
]

const serverFiles = each(denied, [
  ...places.map((place) => `select pg_read_file('${place}')`),
  `select pg_read_file('{outside}/canary', 0, 100)`,
  `select pg_read_file('{outside}/canary', 0, 100, true)`,
  `select pg_read_file('../../../../../etc/passwd')`,
  `select pg_read_file('global/pg_control')`,
  `select pg_read_binary_file('{outside}/canary')`,
  `select pg_read_binary_file('global/pg_control', 0, 8192)`,
  `select pg_read_binary_file('base/1/1259', 0, 8192, true)`,
  `select pg_stat_file('{outside}/canary')`,
  `select pg_stat_file('/etc/passwd', true)`,
  `select pg_ls_dir('{outside}')`,
  `select pg_ls_dir('/', true, true)`,
  `select pg_ls_dir('.')`,
  'select * from pg_file_settings',
  'select * from pg_hba_file_rules',
  'select * from pg_ident_file_mappings',
  'select pg_show_all_file_settings()',
  'select pg_hba_file_rules()',
  'select pg_ident_file_mappings()',
])

/** Admins are members of pg_monitor, which may list some directories of the server, but not read their files. */
const listings = each(
  denied,
  [
    'select name from pg_ls_logdir()',
    'select name from pg_ls_waldir()',
    'select name from pg_ls_archive_statusdir()',
    'select name from pg_ls_tmpdir()',
    'select name from pg_ls_logicalsnapdir()',
    'select name from pg_ls_logicalmapdir()',
    `select name from pg_ls_replslotdir('x')`,
    'select pg_current_logfile()',
  ],
  { admin: `ok 58P01 42704 ${denied}` },
)

const tablespaces = each(`${denied} 22023 42939`, [
  `create tablespace evil location '{outside}'`,
  `create tablespace evil location ''`,
  'alter tablespace pg_default owner to current_user',
  'alter tablespace pg_global rename to evil',
  'alter tablespace pg_default set (random_page_cost = 1)',
  'drop tablespace pg_default',
  ['create temp table t (x int)', 'alter table t set tablespace pg_global'],
  'create temp table t (x int) tablespace pg_global',
])

const documents = [
  ...each('ok 2200M 2200N 22P02 0A000 2201B', [
    `select xmlparse(document '<!DOCTYPE x [<!ENTITY e SYSTEM "file://{outside}/canary">]><x>&e;</x>')::text`,
    `select xmlparse(document '<!DOCTYPE x SYSTEM "file://{outside}/canary"><x/>')::text`,
    `select xpath('/x/text()', '<!DOCTYPE x [<!ENTITY e SYSTEM "/etc/passwd">]><x>&e;</x>')::text`,
    `select * from xmltable('/x' passing xmlparse(document '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>')
       columns y text path '.')`,
    `select xml2.xpath_string('<!DOCTYPE x [<!ENTITY e SYSTEM "file://{outside}/canary">]><x>&e;</x>', '/x')`,
    `select xml2.xpath_string('<x/>', 'document("file://{outside}/canary")')`,
  ]),
  ...each('ok 38000 39000', [
    `select xml2.xslt_process('<x/>', '<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
       <xsl:template match="/"><xsl:copy-of select="document(''file://{outside}/canary'')"/></xsl:template></xsl:stylesheet>')`,
    `select xml2.xslt_process('<x/>', '<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
       <xsl:include href="file://{outside}/canary"/></xsl:stylesheet>')`,
    `select xml2.xslt_process('<x/>', '<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform"
       xmlns:e="http://exslt.org/common" extension-element-prefixes="e"><xsl:template match="/">
       <e:document href="{outside}/written">evil</e:document></xsl:template></xsl:stylesheet>')`,
  ]),
]

export const fileAttempts: Attempt[] = [
  ...copies,
  ...largeObjects,
  ...serverFiles,
  ...listings,
  ...tablespaces,
  ...documents,
]

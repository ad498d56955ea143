// The base of boxes without an image: the lowest overlay layer of `/`, made once from the distribution of the host,
// without a kernel, network configuration or secrets. Programs come from `/usr` of the host, mounted read-only.
import { createHash } from 'node:crypto'
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { cp } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { ensureDirectory, removeAbandonedFiles, temporaryPath } from '../host/atomic-file.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'
import { isRoot, run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { emptyTrash, moveToTrash } from '../host/trash.ts'

export interface BoxBase {
  /** The lowest layer of `/`. */
  root: string
  /** A layer over `/usr` of the host that hides `/usr/local` and `/usr/src`, which belong to its administrator. */
  mask: string
}

// To be incremented when the content of the base changes.
const revision = '3'

/** A base never changes. After an upgrade of the host another is made, and running boxes keep the old one. */
export async function ensureBase(home: Home): Promise<BoxBase> {
  const parent = `${home.path}/sandbox-base`
  ensureDirectory(parent, { mode: 0o700 })
  const directory = `${parent}/${hostVersion()}`
  if (!existsSync(directory)) await makeBase(home, parent, directory)
  return { root: `${directory}/root`, mask: `${directory}/usr` }
}

/** A hash that changes with the installed packages and with the content of the base. */
function hostVersion(): string {
  const status = statSync('/var/lib/dpkg/status', { throwIfNoEntry: false })
  const parts = [revision, String(status?.mtimeMs), String(status?.size), readTextIfPresent('/etc/os-release') ?? '']
  return createHash('sha256').update(parts.join('\0')).digest('hex').slice(0, 16)
}

async function makeBase(home: Home, parent: string, directory: string): Promise<void> {
  await removeAbandonedFiles(parent)
  const fresh = temporaryPath(parent)
  try {
    makeDirectories(`${fresh}/root`)
    await copySettings(`${fresh}/root/etc`)
    writeSettings(`${fresh}/root/etc`)
    await copyPackages(`${fresh}/root/var`)
    await makeMask(`${fresh}/usr`)
    chmodSync(fresh, 0o755)
    renameSync(fresh, directory)
    removeUnused(home, directory)
  } catch (error) {
    rmSync(fresh, { recursive: true, force: true })
    // Another process made it first.
    if (!existsSync(directory)) throw new Error('make the base of sandboxes', { cause: error })
  }
}

/** Removes older bases that no box was started with. */
function removeUnused(home: Home, newest: string): void {
  const boxes = existsSync(`${home.path}/sandbox`) ? readdirSync(`${home.path}/sandbox`) : []
  const configs = boxes.map((box) => readTextIfPresent(`${home.path}/sandbox/${box}/box.conf`) ?? '')
  const bases = readdirSync(dirname(newest)).filter((name) => /^[0-9a-f]{16}$/.test(name))
  for (const base of bases.map((name) => `${dirname(newest)}/${name}`)) {
    if (base !== newest && !configs.some((config) => config.includes(`base ${base}/`))) moveToTrash(home, base)
  }
  emptyTrash(home)
}

const directories = [
  ...['', 'boot', 'dev', 'etc', 'home', 'home/sprite', 'media', 'mnt', 'opt', 'proc', 'run', 'srv', 'sys', 'usr'],
  ...['.berth', '.sprite', 'var', 'var/backups', 'var/cache', 'var/lib', 'var/lib/misc', 'var/local', 'var/log'],
  ...['var/mail', 'var/opt', 'var/spool', 'var/cache/apt', 'var/cache/apt/archives', 'var/cache/apt/archives/partial'],
  ...['var/lib/apt', 'var/lib/apt/lists', 'var/lib/apt/lists/partial', 'var/lib/apt/mirrors', 'var/log/apt'],
  ...['var/cache/debconf', 'var/cache/ldconfig'],
]
// Directories of the root that a distribution may have moved below /usr.
const programDirectories = ['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32']

function makeDirectories(root: string): void {
  for (const directory of directories) makeDirectory(join(root, directory), 0o755)
  makeDirectory(join(root, 'root'), 0o700)
  for (const directory of ['tmp', 'var/tmp']) makeDirectory(join(root, directory), 0o1777)
  symlinkSync('/run', join(root, 'var/run'))
  symlinkSync('/run/lock', join(root, 'var/lock'))
  for (const name of programDirectories) {
    if (isLink(`/${name}`)) symlinkSync(readlinkSync(`/${name}`), join(root, name))
  }
}

function makeDirectory(path: string, mode: number): void {
  mkdirSync(path, { recursive: true })
  chmodSync(path, mode)
}

function isLink(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink() ?? false
}

// An allow-list, because other files in /etc may hold secrets.
const copiedSettings = new Set([
  ...['adduser.conf', 'alternatives', 'apt', 'bash.bashrc', 'bash_completion', 'bash_completion.d', 'binfmt.d'],
  ...['bindresvport.blacklist', 'ca-certificates', 'ca-certificates.conf', 'debconf.conf', 'debian_version', 'default'],
  ...['deluser.conf', 'dpkg', 'e2scrub.conf', 'ethertypes', 'fonts', 'gai.conf', 'ghostscript', 'groff', 'gss'],
  ...['host.conf', 'inputrc', 'issue', 'issue.net', 'ld.so.cache', 'ld.so.conf', 'ld.so.conf.d', 'ldap'],
  ...['libaudit.conf', 'locale.alias', 'locale.conf', 'locale.gen', 'localtime', 'login.defs', 'logrotate.d'],
  ...['lsb-release', 'magic', 'magic.mime', 'mailcap', 'manpath.config', 'maven', 'mime.types', 'mke2fs.conf'],
  ...['netconfig', 'networks', 'nsswitch.conf', 'os-release', 'pam.conf', 'pam.d', 'papersize', 'perl', 'profile'],
  ...['profile.d', 'protocols', 'rmt', 'rpc', 'security', 'selinux', 'services', 'sgml', 'shells', 'skel', 'ssl'],
  ...['subgid', 'subuid', 'sysctl.d', 'systemd', 'terminfo', 'timezone', 'tmpfiles.d', 'ucf.conf', 'update-motd.d'],
  ...['vim', 'vulkan', 'wgetrc', 'X11', 'xattr.conf', 'xdg', 'xml', 'OpenCL', 'ImageMagick-6', 'ImageMagick-7'],
])
const copiedFamilies = /^(chromium|java-|python|php|ruby|openmpi|R$|emacs|nodejs)/
const neverCopied = /^\/etc\/(ssl\/private|apt\/auth\.conf|apt\/auth\.conf\.d)(\/|$)/
// A user and a password in a URL.
const credentials = /:\/\/[^/\s"']+:[^/\s"']*@/

async function copySettings(to: string): Promise<void> {
  const names = readdirSync('/etc').filter((name) => copiedSettings.has(name) || copiedFamilies.test(name))
  for (const name of names) {
    await cp(`/etc/${name}`, `${to}/${name}`, {
      recursive: true,
      verbatimSymlinks: true,
      preserveTimestamps: true,
      filter: isHarmless,
    })
  }
}

function isHarmless(path: string): boolean {
  if (neverCopied.test(path)) return false
  const found = lstatSync(path)
  if (found.isSymbolicLink()) return true
  if (found.isDirectory()) return (found.mode & 0o005) === 0o005
  if (!found.isFile() || (found.mode & 0o004) === 0) return false
  return !path.startsWith('/etc/apt/') || !credentials.test(readFileSync(path, 'utf8'))
}

const lastSystemId = 999
const nobodyId = 65_534

function writeSettings(etc: string): void {
  const users = systemEntries('/etc/passwd', [
    'root:x:0:0:root:/root:/bin/bash',
    'nobody:x:65534:65534:nobody:/:/bin/false',
  ])
  const groups = systemEntries('/etc/group', ['root:x:0:', 'nogroup:x:65534:'])
  write(
    `${etc}/passwd`,
    users.map(([name, , ...rest]) => [name, 'x', ...rest].join(':')),
  )
  write(
    `${etc}/group`,
    groups.map(([name, , id]) => [name, 'x', id, ''].join(':')),
  )
  // No user has a password; commands run as root anyway.
  write(
    `${etc}/shadow`,
    users.map(([name]) => `${name}:*:19000:0:99999:7:::`),
    0o640,
  )
  write(
    `${etc}/gshadow`,
    groups.map(([name]) => `${name}:*::`),
    0o640,
  )
  write(`${etc}/environment`, ['PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"'])
  // Login shells set PATH themselves.
  mkdirSync(`${etc}/profile.d`, { recursive: true })
  write(`${etc}/profile.d/sprite.sh`, ['PATH="$PATH:/.sprite/bin"'])
  write(`${etc}/fstab`, [])
  write(`${etc}/resolv.conf`, [])
  // `localhost` has only the IPv4 address, because connections from the host are redirected to that one.
  write(`${etc}/hosts`, ['127.0.0.1 localhost', '::1 ip6-localhost ip6-loopback'])
  write(`${etc}/hostname`, ['sandbox'])
  write(`${etc}/machine-id`, [])
  rmSync(`${etc}/mtab`, { force: true })
  symlinkSync('/proc/mounts', `${etc}/mtab`)
}

/** The system users or groups of the distribution, without those of people. */
function systemEntries(file: string, fallback: string[]): string[][] {
  const lines = readTextIfPresent(file)?.split('\n') ?? []
  const entries = lines.map((line) => line.split(':')).filter((fields) => fields.length > 3)
  const kept = entries.filter(([, , id]) => Number(id) <= lastSystemId || Number(id) === nobodyId)
  return kept.length > 0 ? kept : fallback.map((line) => line.split(':'))
}

function write(file: string, lines: string[], mode = 0o644): void {
  rmSync(file, { force: true })
  writeFileSync(file, lines.map((line) => `${line}\n`).join(''))
  chmodSync(file, mode)
}

const packageState = ['lib/dpkg', 'lib/apt/extended_states', 'lib/pam', 'lib/ucf', 'lib/sgml-base', 'lib/xml-core']

/** Copies the package database, so that package managers in the box know what is installed. */
async function copyPackages(to: string): Promise<void> {
  for (const part of packageState.filter((name) => existsSync(`/var/${name}`))) {
    mkdirSync(dirname(`${to}/${part}`), { recursive: true })
    // Without root some files cannot be read; the packages work without them.
    await run('cp', ['-a', '--reflink=auto', `/var/${part}`, dirname(`${to}/${part}`)]).catch((error) => {
      if (isRoot()) throw error
    })
  }
  for (const file of ['config.dat', 'templates.dat']) {
    if (isReadable(`/var/cache/debconf/${file}`)) await cp(`/var/cache/debconf/${file}`, `${to}/cache/debconf/${file}`)
  }
  await run('find', [to, '-type', 'f', '-not', '-perm', '-o=r', '-delete'])
}

function isReadable(file: string): boolean {
  const found = statSync(file, { throwIfNoEntry: false })
  return found !== undefined && (found.mode & 0o004) !== 0
}

const localDirectories = ['bin', 'etc', 'games', 'include', 'lib', 'sbin', 'share', 'share/man', 'src']

async function makeMask(mask: string): Promise<void> {
  makeDirectory(mask, 0o755)
  for (const directory of ['local', 'src', ...localDirectories.map((name) => `local/${name}`)])
    makeDirectory(`${mask}/${directory}`, 0o755)
  symlinkSync('share/man', `${mask}/local/man`)
  const attribute = isRoot() ? 'trusted.overlay.opaque' : 'user.overlay.opaque'
  const script = driverProgram('box/base.pl')
  await run('perl', [script, process.arch, attribute, `${mask}/local`, `${mask}/src`])
}

// Creates the directories and files that a box needs on the host before it starts.
import { existsSync, lstatSync, readFileSync, symlinkSync } from 'node:fs'
import type { BoxSpec } from '../../model/sandbox/box.ts'
import { ensureDirectory, ensureFile } from '../host/atomic-file.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'
import { isRoot, run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import type { BoxBase } from './base.ts'
import { ensureBoxDirectory } from './directory.ts'
import { boxPath, type IsolationMode } from './enter/enter.ts'
import { ensureInsideDirectory } from './inside.ts'
import { type BoxNetwork, type BoxRules, findResolvers } from './network.ts'
import { type BoxPaths, innerPathsOf } from './paths.ts'
import { type Machine, seccompFilter } from './seccomp.ts'

/** How a box is to be set up. */
export interface BoxSetup {
  mode: IsolationMode
  base: BoxBase
  filter: string
  /** The host uid of root in the box; undefined when everything runs as one user. */
  uid: number | undefined
  network: (BoxNetwork & { rules: BoxRules }) | undefined
  /** Files of control groups and the values to write to them. */
  limits: Record<string, string>
  /** The command of the first process. Its words hold no tabs or newlines. */
  command: string[]
  image?: { layers: string[]; tools: string; dir: string }
}

const supervisionDirectory = '.s6-svscan'

export function prepareDisk(paths: BoxPaths, spec: BoxSpec, setup: BoxSetup): void {
  const { uid } = setup
  const host = { mode: 0o711 }
  const shown = { mode: 0o755 }
  ensureBoxDirectory(paths.directory, uid)
  for (const directory of ['root', 'work', 'work-usr', 'lower', 'shown'])
    ensureDirectory(`${paths.directory}/${directory}`, host)
  for (const layer of ['base', 'mask', 'usr']) ensureDirectory(`${paths.directory}/lower/${layer}`, host)
  for (const directory of [paths.upper, paths.upperUsr]) ensureDirectory(directory, { mode: 0o755, uid })
  for (const directory of [paths.service, paths.run, paths.log, paths.views, paths.policy])
    ensureDirectory(directory, shown)
  ensureInsideDirectory(paths, uid)
  ensureDirectory(`${paths.run}/${supervisionDirectory}`, { mode: 0o700, uid })
  ensureLink(`../run/${supervisionDirectory}`, `${paths.service}/${supervisionDirectory}`)
  if (setup.mode === 'single') ensureDirectory(`${paths.upperUsr}/local`, { mode: 0o755 })
  if (setup.mode === 'none') ensureDirectory(innerPathsOf('none', paths).home, { mode: 0o755, uid })
  writeShownFiles(paths, setup)
  ensureFile(paths.config, renderConfig(paths, spec, setup), { mode: 0o600 })
}

function ensureLink(target: string, path: string): void {
  if (lstatSync(path, { throwIfNoEntry: false })) return
  symlinkSync(target, path)
}

/** Writes the files of the host that are mounted into the box. */
function writeShownFiles(paths: BoxPaths, setup: BoxSetup): void {
  const servers = setup.network ? findResolvers() : []
  const files = {
    'resolv.conf': servers.map((server) => `nameserver ${server}\n`).join(''),
    'version.txt': 'berth\n',
    'llm.txt': guide,
  }
  for (const [name, text] of Object.entries(files))
    ensureFile(`${paths.directory}/shown/${name}`, text, { mode: 0o644 })
  ensureDirectory(`${paths.directory}/shown/bin`, { mode: 0o755 })
  const client = readFileSync(driverProgram('box/inside.pl'), 'utf8')
  ensureFile(`${paths.directory}/shown/bin/sprite-env`, client, { mode: 0o755 })
}

const guide = `This is a Berth sandbox: a Linux system with a persistent disk.
Commands run as root in /home/sprite. Package managers work if there is a network.
The platform keeps services running; their output is in /.sprite/logs/services.
The newest checkpoints are readable below /.sprite/checkpoints.
The URL of the sandbox leads to port 8080, or to the http_port of the service that has one.
The command sprite-env (in /.sprite/bin) defines and controls services, makes and restores checkpoints and announces how
long you are busy; run it without arguments for help. It speaks HTTP on the socket /.sprite/api.sock, and so can you:
  curl --unix-socket /.sprite/api.sock http://sprite/v1/services
`

/** Renders lines of a key and a value for `start.pl`. Values are names and paths of the platform and hold no newlines. */
function renderConfig(
  paths: BoxPaths,
  spec: BoxSpec,
  { mode, base, filter, uid, network, limits, command, image }: BoxSetup,
): string {
  if (!/^[a-zA-Z0-9][a-zA-Z0-9.-]{0,63}$/.test(spec.hostname))
    throw new Error(`not a hostname: ${JSON.stringify(spec.hostname)}`)
  return renderConfigLines(
    {
      way: mode,
      machine: process.arch,
      directory: paths.directory,
      base: base.root,
      mask: base.mask,
      filter,
      ...(uid !== undefined && { uid: String(uid) }),
      hostname: spec.hostname,
      privileges: spec.isMinimal ? 'minimal' : 'standard',
      path: boxPath,
      command: command.join('\t'),
      ...(network && networkConfig(network)),
      ...(image && { tools: image.tools }),
      ...(image?.dir && { dir: image.dir }),
    },
    { limit: Object.entries(limits).map(([file, value]) => `${file} ${value}`), layer: image?.layers ?? [] },
  )
}

/** Renders keys that occur once, and keys that occur once for each value. */
export function renderConfigLines(single: Record<string, string>, repeated: Record<string, string[]>): string {
  const pairs = [
    ...Object.entries(single),
    ...Object.entries(repeated).flatMap(([key, values]) => values.map((value) => [key, value])),
  ]
  return pairs.map(([key, value]) => `${key} ${value}\n`).join('')
}

export function networkConfig(network: BoxNetwork & { rules: BoxRules }): Record<string, string> {
  return {
    rules: network.rules.file,
    'rules-table': network.rules.table,
    'rules-chain': network.rules.chain,
    link: network.link,
    address: network.address,
    'host-address': network.hostAddress,
    mac: network.mac,
    'host-mac': network.hostMac,
  }
}

/** Makes directories writable: without root, a directory of mode 0 cannot be emptied even by its owner. */
export async function openForRemoval(paths: Pick<BoxPaths, 'directory'>): Promise<void> {
  if (isRoot() || !existsSync(paths.directory)) return
  // chmod -R follows no links. Files of other users cannot be changed and stay in the trash.
  await run('chmod', ['-R', 'u+rwX', paths.directory]).catch(() => undefined)
}

interface Setup {
  mode: IsolationMode
  address?: string
}

/** The isolation mode and the address that the box was last set up with, which the host may not support any more. */
export function readSetup(paths: Pick<BoxPaths, 'config'>): Setup | undefined {
  const text = readTextIfPresent(paths.config) ?? ''
  const mode = /^way (full|single|none)$/m.exec(text)?.[1] as IsolationMode | undefined
  const address = /^address (.+)$/m.exec(text)?.[1]
  return mode && { mode, ...(address && { address }) }
}

export function readIsolationMode(paths: BoxPaths): IsolationMode | undefined {
  return readSetup(paths)?.mode
}

export function filterFile(home: Home): string {
  return `${home.path}/sandbox-base/filter-${process.arch}`
}

/** Writes the seccomp filter to a file that bwrap and `enter.pl` read. */
export function ensureFilter(home: Home): string {
  const file = filterFile(home)
  ensureFile(file, seccompFilter(process.arch as Machine), { mode: 0o644 })
  return file
}

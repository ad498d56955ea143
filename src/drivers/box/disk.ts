// What a box needs on the host's disk before it starts.
import { chmodSync, existsSync, lstatSync, readFileSync, renameSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { readIfPresent, readTextIfPresent } from '../host/file.ts'
import { ensureDirectory, ensureFile, freshName } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { isRoot, run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import type { BoxBase } from './base.ts'
import type { BoxSpec } from './driver.ts'
import { boxPath, type IsolationMode } from './enter/enter.ts'
import { ensureInsideDirectory } from './inside.ts'
import { type BoxNetwork, type BoxRules, findResolvers } from './network.ts'
import { type BoxPaths, innerPathsOf } from './paths.ts'
import { type Machine, seccompFilter } from './seccomp.ts'

export interface BoxMaking {
  way: IsolationMode
  base: BoxBase
  filter: string
  /** The first uid of the box; undefined without a choice. */
  uid: number | undefined
  network: (BoxNetwork & { rules: BoxRules }) | undefined
  /** Files of control groups and what is to stand in them. */
  limits: Record<string, string>
  /** What its first process runs. No word holds a tab or a line end. */
  command: string[]
  image?: { layers: string[]; tools: string; dir: string }
}

export const supervisionDirectory = '.s6-svscan'

export function prepareDisk(paths: BoxPaths, spec: BoxSpec, making: BoxMaking): void {
  const { uid } = making
  const host = { mode: 0o711 }
  const shown = { mode: 0o755 }
  ensureDirectory(paths.directory, host)
  for (const directory of ['root', 'work', 'work-usr', 'lower', 'shown'])
    ensureDirectory(`${paths.directory}/${directory}`, host)
  for (const layer of ['base', 'mask', 'usr']) ensureDirectory(`${paths.directory}/lower/${layer}`, host)
  for (const directory of [paths.upper, paths.upperUsr]) ensureDirectory(directory, { mode: 0o755, uid })
  for (const directory of [paths.service, paths.run, paths.log, paths.views, paths.policy])
    ensureDirectory(directory, shown)
  ensureInsideDirectory(paths, uid)
  ensureDirectory(`${paths.run}/${supervisionDirectory}`, { mode: 0o700, uid })
  ensureLink(`../run/${supervisionDirectory}`, `${paths.service}/${supervisionDirectory}`)
  if (making.way === 'single') ensureDirectory(`${paths.upperUsr}/local`, { mode: 0o755 })
  if (making.way === 'none') ensureDirectory(innerPathsOf('none', paths).home, { mode: 0o755, uid })
  showFiles(paths, making)
  ensureFile(paths.config, renderConfig(paths, spec, making), { mode: 0o600 })
}

function ensureLink(target: string, path: string): void {
  if (lstatSync(path, { throwIfNoEntry: false })) return
  symlinkSync(target, path)
}

function showFiles(paths: BoxPaths, making: BoxMaking): void {
  const servers = making.network ? findResolvers() : []
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

const guide = `This is a sandbox of Berth: a Linux system of its own with a disk that stays.
Commands run as root in /home/sprite. Package managers work if there is a network.
Services are kept running by the platform; what they print is in /.sprite/logs/services.
The newest checkpoints can be read below /.sprite/checkpoints.
What listens on port 8080, or on the port of the service that has an http_port, is reached by the URL of the sandbox.
The command sprite-env (in /.sprite/bin) defines and controls services, makes and restores checkpoints and says for how
long you are busy; "sprite-env" alone shows how. It speaks HTTP on the socket /.sprite/api.sock, as you can:
  curl --unix-socket /.sprite/api.sock http://sprite/v1/services
`

/** A line for each, a key and a value. Values hold no line ends: they are names and paths of ours. */
function renderConfig(
  paths: BoxPaths,
  spec: BoxSpec,
  { way, base, filter, uid, network, limits, command, image }: BoxMaking,
): string {
  if (!/^[a-zA-Z0-9][a-zA-Z0-9.-]{0,63}$/.test(spec.hostname))
    throw new Error(`not a hostname: ${JSON.stringify(spec.hostname)}`)
  return renderLines(
    {
      way,
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
      ...(network && networkValues(network)),
      ...(image && { tools: image.tools }),
      ...(image?.dir && { dir: image.dir }),
    },
    { limit: Object.entries(limits).map(([file, value]) => `${file} ${value}`), layer: image?.layers ?? [] },
  )
}

/** What stands once, and what stands as often as there is something to say. */
export function renderLines(once: Record<string, string>, often: Record<string, string[]>): string {
  const pairs = [
    ...Object.entries(once),
    ...Object.entries(often).flatMap(([key, values]) => values.map((value) => [key, value])),
  ]
  return pairs.map(([key, value]) => `${key} ${value}\n`).join('')
}

export function networkValues(network: BoxNetwork & { rules: BoxRules }): Record<string, string> {
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

/** An ordinary user can delete what is in his directories only after opening those that are closed to himself. */
export async function openForRemoval(paths: Pick<BoxPaths, 'directory'>): Promise<void> {
  if (isRoot() || !existsSync(paths.directory)) return
  // It follows no links. What it cannot change is not his and stays in the trash.
  await run('chmod', ['-R', 'u+rwX', paths.directory]).catch(() => undefined)
}

export interface Making {
  way: IsolationMode
  address?: string
}

/** How the box was made, whatever this machine could do today. */
export function readMaking(paths: Pick<BoxPaths, 'config'>): Making | undefined {
  const text = readTextIfPresent(paths.config) ?? ''
  const way = /^way (full|single|none)$/m.exec(text)?.[1] as IsolationMode | undefined
  const address = /^address (.+)$/m.exec(text)?.[1]
  return way && { way, ...(address && { address }) }
}

export function readWay(paths: BoxPaths): IsolationMode | undefined {
  return readMaking(paths)?.way
}

export function filterFile(home: Home): string {
  return `${home.path}/sandbox-base/filter-${process.arch}`
}

/** The bytes lie in a file, which bwrap reads as well as the program that enters. */
export function ensureFilter(home: Home): string {
  const bytes = seccompFilter(process.arch as Machine)
  const file = filterFile(home)
  if (readIfPresent(file)?.equals(bytes)) return file
  const fresh = freshName(dirname(file))
  writeFileSync(fresh, bytes, { flag: 'wx', mode: 0o644 })
  chmodSync(fresh, 0o644)
  renameSync(fresh, file)
  return file
}

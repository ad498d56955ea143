// How a command gets into a box: by a program that enters its namespaces. What it is to do goes through its environment,
// which only its own user can read, and which leaves room where a terminal takes no further descriptors.
import { constants } from 'node:os'
import { baseEnvironment, findCommand } from '../../host/process.ts'
import { driverProgram } from '../../host/program.ts'
import type { BoxCommand, BoxImage } from '../driver.ts'

export interface Entrance {
  way: IsolationMode
  /** The directory of the box's service in the host's supervision tree. */
  service: string
  /** Of the first process. */
  uid: number
  cgroup: string[]
  filter: string
  home: string
  isMinimal: boolean
  /** Always in the environment of what enters. */
  env: Record<string, string>
  /** What the box is made from, if it is an image. */
  image?: BoxImage
  /** Of a machine: whom the command runs as, by the words of its image, and what stands for the usual environment. */
  machine?: { user: string; env: Record<string, string> }
}

/** With a range of uids and a network; with one uid and none; without any isolation. */
export type IsolationMode = 'full' | 'single' | 'none'

export interface Entry {
  program: string
  args: string[]
  env: Record<string, string>
}

export const boxPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.sprite/bin'

// The kernel takes 131072 bytes for one variable.
const partBytes = 100_000

export function renderEntry(entrance: Entrance, command: BoxCommand, terminal: boolean): Entry {
  return { ...enterer(), env: renderRequest(requestOf(entrance, command, terminal)) }
}

/** The program that enters, and what it is started with. */
export function enterer(): Pick<Entry, 'program' | 'args'> {
  return { program: findCommand('perl') ?? '/usr/bin/perl', args: [driverProgram('box/enter/enter.pl'), process.arch] }
}

/** What it is to do, in lists of words. */
export function requestOf(entrance: Entrance, command: BoxCommand, terminal: boolean): Record<string, string[]> {
  const usual = entrance.machine?.env ?? usualEnvironment(entrance.home, entrance.image)
  const environment = { ...usual, ...command.env, ...entrance.env }
  return {
    machine: [process.arch],
    way: [entrance.way],
    service: [entrance.service],
    uid: [String(entrance.uid)],
    ...(entrance.machine && { first: ['bwrap'], user: [entrance.machine.user] }),
    cgroup: entrance.cgroup,
    filter: [entrance.filter],
    privileges: [entrance.isMinimal ? 'minimal' : 'standard'],
    terminal: [terminal ? '1' : ''],
    dir: [command.dir ?? (entrance.image?.workingDir || entrance.home)],
    env: Object.entries(environment).map(([name, value]) => `${variableName(name)}=${value}`),
    argv: command.argv,
  }
}

/** What the program that enters is to get, so that its command gets this signal. */
export function handedOn(signal: number): number {
  const { SIGSTOP, SIGSTKFLT } = constants.signals
  return signal === SIGSTOP ? SIGSTKFLT : signal
}

/** Of everything that runs in a sandbox. An image says more, and where its programs are, but not where home is. */
export function usualEnvironment(home: string, image: BoxImage | undefined): Record<string, string> {
  const usual = { PATH: boxPath, HOME: home, USER: 'root', LANG: 'C.UTF-8' }
  if (!image) return usual
  const { PATH, ...env } = image.env
  return { ...usual, ...env, ...(PATH && { PATH: `${PATH}:/.sprite/bin` }), HOME: home }
}

export function variableName(name: string): string {
  if (name === '' || name.includes('=')) throw new Error(`not a variable name: ${JSON.stringify(name)}`)
  return name
}

/** Words with their number in front of each list, as `read_words` of box-lib.pl takes them apart. */
export function renderWords(lists: Record<string, string[]>): string {
  const words = Object.entries(lists).flatMap(([key, values]) => [key, String(values.length), ...values])
  if (words.some((word) => word.includes('\0'))) throw new Error('a word of a command cannot hold a zero byte')
  return words.map((word) => word.replaceAll('%', '%25')).join('%00')
}

/** In as many variables as it takes. Zero bytes would part the words, but the kernel takes none in a variable. */
export function renderRequest(request: Record<string, string[]>): Record<string, string> {
  const bytes = Buffer.from(renderWords(request))
  const parts: Record<string, string> = { PATH: baseEnvironment.PATH }
  for (const [index, part] of cut(bytes).entries()) parts[`BERTH_ENTER_${index}`] = part
  return parts
}

/** Never inside a character or an escape. */
function cut(bytes: Buffer): string[] {
  const parts: string[] = []
  for (let from = 0; from < bytes.length; ) {
    let to = Math.min(from + partBytes, bytes.length)
    while (to < bytes.length && to > from && (bytes[to]! & 0xc0) === 0x80) to -= 1
    parts.push(bytes.toString('utf8', from, to))
    from = to
  }
  return parts
}

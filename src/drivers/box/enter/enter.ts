// Runs a command in a box through `enter.pl`, which joins the namespaces of the box. The request is passed in the
// environment, which only the same user can read, or to a process that was started before: see spare.ts.
import type { BoxImage } from '../../../model/sandbox/box.ts'
import { baseEnvironment, findCommand } from '../../host/process.ts'
import { driverProgram } from '../../host/program.ts'
import type { BoxCommand, BoxEntry } from '../driver.ts'

export interface Entrance {
  mode: IsolationMode
  /** The service directory of the box in the supervision tree of the host. */
  service: string
  /** The uid of the first process. */
  uid: number
  cgroup: string[]
  filter: string
  home: string
  isMinimal: boolean
  /** Variables that every command gets and that it cannot override. */
  env: Record<string, string>
  /** The image that the box is made from, if any. */
  image?: BoxImage
  /** For machines: the user that commands run as, in the syntax of image configs, and the default environment. */
  machine?: { user: string; env: Record<string, string>; container?: string }
}

/** `full`: a range of uids and optionally a network; `single`: one uid and no network; `none`: plain processes. */
export type IsolationMode = 'full' | 'single' | 'none'

export const boxPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.sprite/bin'

// Linux limits one environment variable to 131072 bytes.
const partBytes = 100_000

export function renderEntry(entrance: Entrance, command: BoxCommand): BoxEntry {
  return { ...enterProgram(), env: renderRequest(enterRequest(entrance, command)) }
}

export function enterProgram(): Pick<BoxEntry, 'program' | 'args'> {
  return { program: findCommand('perl') ?? '/usr/bin/perl', args: [driverProgram('box/enter/enter.pl'), process.arch] }
}

/** The request as named lists of words, which `enter.pl` reads. */
export function enterRequest(entrance: Entrance, command: BoxCommand): Record<string, string[]> {
  const defaults = entrance.machine?.env ?? defaultEnvironment(entrance.home, entrance.image)
  const environment = { ...defaults, ...command.env, ...entrance.env }
  return {
    machine: [process.arch],
    way: [entrance.mode],
    service: [entrance.service],
    uid: [String(entrance.uid)],
    ...(entrance.machine && { first: ['bwrap'], user: [entrance.machine.user] }),
    ...(entrance.machine?.container && { container: [entrance.machine.container] }),
    cgroup: entrance.cgroup,
    filter: [entrance.filter],
    privileges: [entrance.isMinimal ? 'minimal' : 'standard'],
    dir: [command.dir ?? (entrance.image?.workingDir || entrance.home)],
    env: Object.entries(environment).map(([name, value]) => `${variableName(name)}=${value}`),
    argv: command.argv,
  }
}

/** The environment of commands and services. An image may override everything except HOME. */
export function defaultEnvironment(home: string, image: BoxImage | undefined): Record<string, string> {
  const defaults = { PATH: boxPath, HOME: home, USER: 'root', LANG: 'C.UTF-8' }
  if (!image) return defaults
  const { PATH, ...env } = image.env
  return { ...defaults, ...env, ...(PATH && { PATH: `${PATH}:/.sprite/bin` }), HOME: home }
}

export function variableName(name: string): string {
  if (name === '' || name.includes('=')) throw new Error(`not a variable name: ${JSON.stringify(name)}`)
  return name
}

/** Encodes named lists, each preceded by its length, for `read_words` in `lib.pl`. */
export function renderWords(lists: Record<string, string[]>): string {
  const words = Object.entries(lists).flatMap(([key, values]) => [key, String(values.length), ...values])
  if (words.some((word) => word.includes('\0'))) throw new Error('a word of a command cannot hold a zero byte')
  return words.map((word) => word.replaceAll('%', '%25')).join('%00')
}

/** Spreads the request over as many variables as it needs. */
export function renderRequest(request: Record<string, string[]>): Record<string, string> {
  const bytes = Buffer.from(renderWords(request))
  const parts: Record<string, string> = { PATH: baseEnvironment.PATH }
  for (const [index, part] of splitUtf8(bytes).entries()) parts[`BERTH_ENTER_${index}`] = part
  return parts
}

/** Splits between characters. An escape may be split, because the parts are joined before they are decoded. */
function splitUtf8(bytes: Buffer): string[] {
  const parts: string[] = []
  for (let from = 0; from < bytes.length; ) {
    let to = Math.min(from + partBytes, bytes.length)
    while (to < bytes.length && to > from && (bytes[to]! & 0xc0) === 0x80) to -= 1
    parts.push(bytes.toString('utf8', from, to))
    from = to
  }
  return parts
}

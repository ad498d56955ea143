// What a person sees of a start. Everything else goes to the log.
import { existsSync } from 'node:fs'
import { block, sanitize } from '../cli/output.ts'
import { shellQuote } from '../drivers/host/shell.ts'
import { type Config, describeConfig } from './config.ts'
import { nextCommands } from './install.ts'
import { controlPlaneLog, type LogTarget } from './log.ts'
import { version } from './version.ts'

export interface Startup {
  log: LogTarget
  /** Called before each step. */
  step(what: string): void
  /** The seconds since the start. */
  seconds(): number
}

export function openStartup(log: LogTarget): Startup {
  return {
    log,
    step: log === 'terminal' ? (what) => console.log(`${what} ...`) : () => undefined,
    // Includes the time that Node itself took.
    seconds: () => performance.now() / 1000,
  }
}

export type Addresses = Record<'api' | 'sandbox' | 'edge', string>

/** The URL of an app and of a sandbox. */
export function publicUrls(config: Pick<Config, 'tls' | 'domain' | 'sandboxDomain'>, edgePort: number | string) {
  const scheme = config.tls ? 'https' : 'http'
  return {
    appUrl: (name: string) => `${scheme}://${name}.${config.domain}:${edgePort}/`,
    sandboxUrl: (name: string) => `${scheme}://${name}.${config.sandboxDomain}:${edgePort}/`,
  }
}

interface Started {
  config: Config
  addresses: Addresses
  /** The first line. */
  headline: string
  /** The control plane runs without a terminal. */
  isDetached: boolean
  hasSystemd: boolean
}

export function hasSystemd(): boolean {
  return existsSync('/run/systemd/system')
}

/** Names the addresses, where the token is, what to try and how to stop. */
export function announcement({ config, addresses, headline, ...how }: Started): string {
  const { port, protocol } = new URL(addresses.edge)
  const { appUrl, sandboxUrl } = publicUrls(config, port || (protocol === 'https:' ? 443 : 80))
  const facts: [string, string][] = [
    ['platform API', `${addresses.api}   (reference: ${addresses.api}/docs)`],
    ['sandbox API', `${addresses.sandbox}   (reference: ${addresses.sandbox}/docs)`],
    ['apps', appUrl('<app>')],
    ['sandboxes', sandboxUrl('<sandbox>')],
    ['root token', config.token ? 'BERTH_TOKEN' : `${config.home}/token`],
    ['log', controlPlaneLog({ path: config.home })],
  ]
  return [
    headline,
    '',
    indent(block(facts, false)),
    '',
    how.isDetached ? 'Three things to try:' : 'Three things to try in another terminal:',
    '',
    indent([...selectHome(config), ...suggestions].join('\n')),
    '',
    ...howToStop(how),
  ].join('\n')
}

const suggestions = [
  './berth postgres create shop              # a Postgres cluster with point-in-time restore',
  './berth sandbox create demo               # a sandbox; then: ./berth sandbox console demo',
  './berth deploy -a web --image nginx:alpine --internal-port 80   # an app with two machines',
]

/** The other terminal may lack the setting. */
function selectHome({ home }: Config): string[] {
  const isGiven = describeConfig().some(({ name, set }) => name === 'BERTH_HOME' && set)
  return isGiven ? [sanitize(`export BERTH_HOME=${/^[\w@:,./+-]+$/.test(home) ? home : shellQuote(home)}`)] : []
}

function howToStop({ isDetached, hasSystemd }: Pick<Started, 'isDetached' | 'hasSystemd'>): string[] {
  const keep = hasSystemd
    ? `To start it at every boot: ${['./berth install', ...nextCommands].join(' && ')}`
    : 'It does not start again after a reboot; this machine has no systemd, so let its init system run "./berth up".'
  if (isDetached) return ['"./berth down" stops everything, "./berth status" shows what runs.', keep]
  return [
    'Ctrl-C stops the control plane; workloads keep running. "./berth down" stops everything.',
    'To keep it running without this terminal: ./berth up --detach',
    keep,
  ]
}

function indent(text: string): string {
  return text.replaceAll(/^(?=.)/gm, '  ')
}

export function readyLine(seconds: number): string {
  return `Berth ${version} is ready after ${seconds.toFixed(1)} s.`
}

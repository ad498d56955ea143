import { isRoot } from '../../drivers/host/process.ts'

export interface Finding {
  /** A problem keeps the platform from starting or makes it unsafe; a warning means that a feature is limited or missing. */
  level: 'ok' | 'warning' | 'problem'
  found: string
  /** The consequence for the user. */
  cost?: string
  fix?: string
  version?: string
  /** The versions that the tests have run with, the oldest first. */
  tested?: string[]
  /** Debian packages that are missing. */
  install?: string[]
}

export type Check = () => Finding | Promise<Finding>

export function ok(found: string): Finding {
  return { level: 'ok', found }
}

export function warning(found: string, cost: string, fix: string): Finding {
  return { level: 'warning', found, cost, fix }
}

export function problem(found: string, cost: string, fix: string): Finding {
  return { level: 'problem', found, cost, fix }
}

/** The command that installs Debian packages. */
export function installCommand(...packages: string[]): string {
  return asRoot(`apt-get install -y ${packages.join(' ')}`)
}

export function asRoot(command: string): string {
  return isRoot() ? command : `sudo ${command}`
}

export function nameUserCommand(): string {
  return asRoot(`useradd --uid ${process.getuid?.()} berth`)
}

export const gigabyte = 1e9

export function inGigabytes(bytes: number): string {
  return `${(bytes / gigabyte).toFixed(1)} GB`
}

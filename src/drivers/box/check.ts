// Tests for `berth doctor` which of the kernel features that boxes need this host has. Each is tried for real and leaves
// nothing behind.
import { existsSync, readFileSync } from 'node:fs'
import { commandExists, run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { type Machine, seccompFilter } from './seccomp.ts'

export type BoxPart = 'layers' | 'network' | 'filter'

// The operator waits for the result.
const timeoutSeconds = 1.5

/** Returns the problem, or undefined when the feature works. */
export async function checkBoxPart(part: BoxPart): Promise<string | undefined> {
  const needed = { layers: ['perl'], network: ['perl', 'ip', 'nft'], filter: ['perl'] }[part]
  const missing = needed.find((name) => !commandExists(name))
  if (missing) return `${missing} is not installed`
  const input = part === 'filter' ? seccompFilter(process.arch as Machine) : ''
  try {
    await run('perl', [driverProgram('box/check.pl'), process.arch, part], { timeoutSeconds, input })
    return undefined
  } catch (error) {
    return (error as Error).message
  }
}

/** The interfaces with a default route on which IPv4 forwarding is off. */
export function listClosedUplinks(): string[] {
  const routes = existsSync('/proc/net/route') ? readFileSync('/proc/net/route', 'utf8').split('\n').slice(1) : []
  const defaults = routes.map((line) => line.split('\t')).filter(([, destination]) => destination === '00000000')
  const names = [...new Set(defaults.map(([name = '']) => name))]
  return names.filter((name) => readFileSync(`/proc/sys/net/ipv4/conf/${name}/forwarding`, 'utf8').trim() === '0')
}

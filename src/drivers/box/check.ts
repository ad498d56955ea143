// Whether this machine has what boxes need, part by part, for people who want to know. It is found out by trying; nothing
// of it stays.
import { existsSync, readFileSync } from 'node:fs'
import { commandExists, run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { type Machine, seccompFilter } from './seccomp.ts'

export type BoxPart = 'layers' | 'network' | 'filter'

// Whoever asks waits for the answer.
const answerSeconds = 1.5

/** Undefined when it works; else why not. */
export async function checkBoxPart(part: BoxPart): Promise<string | undefined> {
  const needed = { layers: ['perl'], network: ['perl', 'ip', 'nft'], filter: ['perl'] }[part]
  const lacking = needed.find((name) => !commandExists(name))
  if (lacking) return `${lacking} is not installed`
  const input = part === 'filter' ? seccompFilter(process.arch as Machine) : ''
  try {
    await run('perl', [driverProgram('box/check.pl'), process.arch, part], { timeoutSeconds: answerSeconds, input })
    return undefined
  } catch (error) {
    return (error as Error).message
  }
}

/** The interfaces that lead out of this machine and do not pass on what comes from a box yet. */
export function listClosedUplinks(): string[] {
  const routes = existsSync('/proc/net/route') ? readFileSync('/proc/net/route', 'utf8').split('\n').slice(1) : []
  const defaults = routes.map((line) => line.split('\t')).filter(([, destination]) => destination === '00000000')
  const names = [...new Set(defaults.map(([name = '']) => name))]
  return names.filter((name) => readFileSync(`/proc/sys/net/ipv4/conf/${name}/forwarding`, 'utf8').trim() === '0')
}

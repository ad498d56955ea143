import { type ChildProcess, spawn } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { type RunOutput, run } from '../../src/drivers/host/process.ts'

export interface Neighbor {
  machine: ChildProcess
  inside(command: string, ...args: string[]): Promise<RunOutput>
}

/**
 * Starts a network namespace that is linked to the host by a veth pair, as a neighboring machine that boxes may reach. It
 * exists while the program runs, which must print something once it is ready. Test files run concurrently, so each must
 * use addresses in networks of its own.
 */
export async function startNeighbor(
  ours: string[],
  theirs: string[],
  program: [string, ...string[]],
): Promise<Neighbor> {
  const machine = spawn('unshare', ['-n', ...program])
  await new Promise((resolve) => machine.stdout.once('data', resolve))
  const link = `bxpol${machine.pid}`
  const inside = (...args: [string, ...string[]]) => run('nsenter', ['-t', String(machine.pid), '-n', ...args])
  await run('ip', ['link', 'add', link, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', String(machine.pid)])
  for (const address of ours) await run('ip', ['addr', 'add', address, 'dev', link])
  await run('ip', ['link', 'set', link, 'up'])
  for (const address of theirs) await inside('ip', 'addr', 'add', address, 'dev', 'eth0')
  await inside('ip', 'link', 'set', 'eth0', 'up')
  writeFileSync(`/proc/sys/net/ipv4/conf/${link}/forwarding`, '1')
  return { machine, inside }
}

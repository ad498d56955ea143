// New versions of machines, one after the other: the next one is touched when the one before is up and well.
import { request, type Session } from './client.ts'
import { Failure, Refusal } from './failure.ts'
import { type Machine, type MachineConfig, machinePath, waitForState } from './machine-find.ts'
import { type Progress, watch } from './progress.ts'

export interface Roll {
  session: Session
  app: string
  progress: Progress
  waitSeconds: number
}

export interface Change {
  machine: Machine
  config: MachineConfig
}

/** Under leases, so that nobody else changes them meanwhile. What was not touched when one fails stays as it was. */
export async function rollOut(roll: Roll, changes: Change[], strategy: 'rolling' | 'immediate'): Promise<void> {
  try {
    if (strategy === 'immediate') {
      await Promise.all(changes.map((change) => replace(roll, change, '')))
      return
    }
    for (const [index, change] of changes.entries()) await replace(roll, change, ` (${index + 1} of ${changes.length})`)
  } finally {
    roll.progress.end()
  }
}

async function replace(roll: Roll, { machine, config }: Change, place: string): Promise<void> {
  const { session, app, progress } = roll
  const path = machinePath(app, machine.id)
  progress.show(`updating machine ${machine.id}${place}`)
  const ttl = roll.waitSeconds + 60
  const lease = await request<{ data: { nonce: string } }>(session, 'POST', `${path}/lease`, { ttl })
  const nonce = { 'fly-machine-lease-nonce': lease.data.nonce }
  try {
    const body = { config, current_version: machine.instance_id }
    const updated = await request<Machine>(session, 'POST', path, body, nonce)
    if (!wasRunning(machine)) {
      await waitForState(session, app, updated, 'stopped', roll.waitSeconds)
      return
    }
    await waitForState(session, app, updated, 'started', roll.waitSeconds)
    await waitUntilWell(roll, updated)
  } catch (error) {
    throw await explained(roll, machine.id, error)
  } finally {
    await request(session, 'DELETE', `${path}/lease`, undefined, nonce).catch(() => undefined)
  }
}

function wasRunning({ state }: Machine): boolean {
  return !['stopped', 'suspended', 'created', 'failed'].includes(state)
}

/** All of its checks pass, if it has any. */
export async function waitUntilWell(roll: Roll, machine: Pick<Machine, 'id'>): Promise<void> {
  const deadline = Date.now() + roll.waitSeconds * 1000
  const look = () => request<Machine>(roll.session, 'GET', machinePath(roll.app, machine.id))
  await watch(roll.progress, look, (seen) => {
    const failing = (seen.checks ?? []).filter(({ status }) => status !== 'passing')
    if (failing.length === 0) return undefined
    if (['stopped', 'failed', 'destroyed'].includes(seen.state))
      throw new Failure(`machine ${seen.id} is ${seen.state}`)
    const names = failing.map(({ name }) => name).join(', ')
    if (Date.now() > deadline)
      throw new Failure(`machine ${seen.id}: ${names} does not pass after ${roll.waitSeconds} s`)
    return `machine ${seen.id}: waiting for ${names}`
  })
}

const lastLines = 10

/** With the last words of the machine, which mostly say more. */
async function explained({ session, app }: Roll, id: string, error: unknown): Promise<unknown> {
  if (!(error instanceof Failure || error instanceof Refusal)) return error
  const { readEvents } = await import('./sandbox-stream.ts')
  const said: string[] = []
  try {
    const path = `${machinePath(app, id)}/logs?lines=${lastLines}`
    for await (const line of readEvents<{ message: string }>(session, { method: 'GET', path })) said.push(line.message)
  } catch {
    // The reason itself is what counts.
  }
  if (said.length === 0) return error
  return new Failure(
    `${error.message}\nThe last lines of machine ${id}:\n${said.map((line) => `  ${line}`).join('\n')}`,
  )
}

// Looks whether machines are well, as their configuration says. It is no step of the loop: checks come every few seconds,
// and nothing is written while their result stays the same.
import { request as httpRequest } from 'node:http'
import { request as httpsRequest } from 'node:https'
import { connect } from 'node:net'
import type { MachineEntrance } from '../../drivers/machine/driver.ts'
import { machineEntrance, slotOf } from '../../drivers/machine/spec.ts'
import type { CheckResult, Machine } from '../../model/app/machine.ts'
import { listChecks, type NamedCheck } from '../../model/app/machine-check-list.ts'
import { millisOf } from '../../model/duration.ts'
import { boxAddress } from '../../model/network.ts'
import { listMachinesToCheck, readSurroundings } from '../../store/app/machine.ts'
import type { MachineFeed } from '../../store/app/machine-feed.ts'
import { setCheck } from '../../store/app/machine-progress.ts'
import { holdLock } from '../../store/listen.ts'
import type { World } from '../step.ts'

export interface Checker {
  stop(): Promise<void>
}

const preset = { intervalMs: 15_000, timeoutMs: 5_000, graceMs: 10_000 }
const least = { intervalMs: 1_000, timeoutMs: 100 }

/** Until a check passes for the first time somebody may wait for it: it is made often at first, and less so with time. */
const first = { leastMs: 100, shareOfAge: 0.1 }

/** Whatever the checked says is cut to it. */
const mostOutput = 1_000

/** Changes are told; this is for what was not heard. */
const reloadMs = 30_000

interface Watched {
  machine: Machine
  timers: NodeJS.Timeout[]
}

export type CheckOutcome = Pick<CheckResult, 'status' | 'output'>

/** Of all processes on one state database one checks. */
export function startChecker(world: World, lockConfig: Parameters<typeof holdLock>[0], feed: MachineFeed): Checker {
  const watched = new Map<string, Watched>()
  const last = new Map<string, string>()
  let stopped = false
  let reloading: Promise<void> | undefined
  let again = false

  const keyOf = ({ id, instanceId, stateSince }: Machine) => `${id} ${instanceId} ${stateSince}`

  function drop(key: string): void {
    for (const timer of watched.get(key)?.timers ?? []) clearTimeout(timer)
    watched.delete(key)
    for (const name of last.keys()) if (name.startsWith(`${key} `)) last.delete(name)
  }

  function begin(machine: Machine): void {
    const key = keyOf(machine)
    const entry: Watched = { machine, timers: [] }
    watched.set(key, entry)
    listChecks(machine.config).forEach((named, at) => {
      const interval = Math.max(millisOf(named.check.interval) ?? preset.intervalMs, least.intervalMs)
      const graceMs = millisOf(named.check.grace_period) ?? preset.graceMs
      const startedAt = performance.now()
      let hasPassed = false
      const run = async () => {
        const outcome = await runCheck(world, machine, named)
        if (stopped || watched.get(key) !== entry) return
        const ageMs = performance.now() - startedAt
        hasPassed ||= outcome.status === 'passing'
        // What is still coming up is not broken.
        if (hasPassed || ageMs >= graceMs) await note(`${key} ${named.name}`, machine, named, outcome)
        entry.timers[at] = setTimeout(() => void run(), hasPassed ? interval : Math.min(interval, firstPauseMs(ageMs)))
      }
      void run()
    })
  }

  async function note(key: string, machine: Machine, { name }: NamedCheck, outcome: CheckOutcome): Promise<void> {
    if (last.get(key) === outcome.status) return
    last.set(key, outcome.status)
    // The result of the next one is written when this one could not be.
    await setCheck(world.db, machine, name, outcome).catch(() => last.delete(key))
  }

  async function reload(): Promise<void> {
    const machines = lock.held() ? await listMachinesToCheck(world.db) : []
    if (stopped) return
    const current = new Map(machines.map((machine) => [keyOf(machine), machine]))
    for (const key of [...watched.keys()]) if (!current.has(key)) drop(key)
    for (const [key, machine] of current) if (!watched.has(key)) begin(machine)
  }

  function wake(): void {
    if (stopped) return
    if (reloading) {
      again = true
      return
    }
    reloading = reload()
      .catch(() => {}) // the database is away: with the next one
      .then(() => {
        reloading = undefined
        if (!again) return
        again = false
        wake()
      })
  }

  const lock = holdLock(lockConfig, 'machine checks', () => wake())
  const unsubscribe = feed.subscribe(wake)
  const timer = setInterval(wake, reloadMs)
  return {
    async stop() {
      stopped = true
      unsubscribe()
      clearInterval(timer)
      await reloading
      for (const key of [...watched.keys()]) drop(key)
      await lock.close()
    },
  }
}

export function firstPauseMs(ageMs: number): number {
  return Math.max(first.leastMs, ageMs * first.shareOfAge)
}

/** Never throws. */
export async function runCheck(world: World, machine: Machine, named: NamedCheck): Promise<CheckOutcome> {
  const timeoutMs = Math.max(millisOf(named.check.timeout) ?? preset.timeoutMs, least.timeoutMs)
  try {
    if (named.check.type === 'exec') return await runCommand(world, machine, named, timeoutMs)
    const { network } = await world.machines.isolation()
    const host = network === 'host' ? '127.0.0.1' : boxAddress(world.homeNumber, slotOf(machine))
    return await (named.check.type === 'http' ? ask : dial)(host, named, timeoutMs)
  } catch (error) {
    return { status: 'critical', output: (error as Error).message.slice(0, mostOutput) }
  }
}

function dial(host: string, { port }: NamedCheck, timeoutMs: number): Promise<CheckOutcome> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host, port: port!, timeout: timeoutMs })
    socket.once('connect', () => {
      socket.destroy()
      resolve({ status: 'passing', output: 'connected' })
    })
    socket.once('timeout', () => socket.destroy(new Error(`no connection within ${timeoutMs} ms`)))
    socket.once('error', reject)
  })
}

function ask(host: string, { check, port }: NamedCheck, timeoutMs: number): Promise<CheckOutcome> {
  const isTls = check.protocol === 'https'
  const headers = Object.fromEntries((check.headers ?? []).map(({ name, values }) => [name, values]))
  return new Promise((resolve, reject) => {
    const request = (isTls ? httpsRequest : httpRequest)({
      host,
      port,
      path: check.path ?? '/',
      method: (check.method ?? 'GET').toUpperCase(),
      headers,
      agent: false,
      signal: AbortSignal.timeout(timeoutMs),
      ...(isTls && {
        rejectUnauthorized: !check.tls_skip_verify,
        ...(check.tls_server_name && { servername: check.tls_server_name }),
      }),
    })
    request.once('error', (error) => {
      reject(
        error.name === 'TimeoutError' || error.name === 'AbortError'
          ? new Error(`no answer within ${timeoutMs} ms`)
          : error,
      )
    })
    request.once('response', (response) => {
      let body = ''
      const status = response.statusCode ?? 0
      const end = () => {
        response.destroy()
        const isWell = status >= 200 && status < 300
        resolve({
          status: isWell ? 'passing' : 'critical',
          output: `HTTP ${status}${body && `: ${body}`}`.slice(0, mostOutput),
        })
      }
      response.setEncoding('utf8')
      response.on('data', (text: string) => {
        body += text
        if (body.length > mostOutput) end()
      })
      response.once('end', end)
      response.once('error', reject)
    })
    request.end()
  })
}

async function runCommand(
  world: World,
  machine: Machine,
  { check }: NamedCheck,
  timeoutMs: number,
): Promise<CheckOutcome> {
  const child = world.machines.spawnInMachine(await entranceOf(machine, world), {
    argv: check.command as [string, ...string[]],
  })
  return new Promise((resolve, reject) => {
    let output = ''
    const late = setTimeout(() => {
      child.kill('SIGKILL')
      reject(new Error(`the command did not end within ${timeoutMs} ms`))
    }, timeoutMs)
    const take = (data: Buffer) => {
      if (output.length < mostOutput) output = (output + data.toString()).slice(0, mostOutput)
    }
    child.stdout?.on('data', take)
    child.stderr?.on('data', take)
    child.stdin?.on('error', () => undefined) // it ended without reading
    child.stdin?.end()
    child.once('error', reject)
    child.once('exit', (code) => {
      clearTimeout(late)
      resolve({ status: code === 0 ? 'passing' : 'critical', output: output || `exit code ${code}` })
    })
  })
}

/** A version of a machine keeps its image and its secrets, so that it is put together once. */
const entrances = new WeakMap<Machine, MachineEntrance>()

async function entranceOf(machine: Machine, world: World): Promise<MachineEntrance> {
  const known = entrances.get(machine)
  if (known) return known
  const image = machine.image && (await world.images.findImage(machine.image.digest))
  if (!image) throw new Error('its image is not here')
  const around = await readSurroundings(world.db, machine.id, world.encryptionKey)
  const hasPrivateNetworks = await world.hasPrivateNetworks()
  const entrance = machineEntrance(machine, image, { ...around, homeNumber: world.homeNumber, hasPrivateNetworks })
  entrances.set(machine, entrance)
  return entrance
}

import type { LogLine } from '../../drivers/machine/driver.ts'
import type { MachineDetails } from '../../model/app/machine.ts'
import { takeWithTies } from '../../model/app/machine-log.ts'
import { getMachineApp, getVisibleMachine, listMachines } from '../../store/app/machine.ts'
import type { LiveContext } from '../context.ts'

export interface AppLogLine extends LogLine {
  machineId: string
  region: string
}

export interface LogRequest {
  lines: number
  follow: boolean
}

export type LogSource = (send: (lines: AppLogLine[]) => Promise<void>, signal: AbortSignal) => Promise<void>

/** Checks access first; the returned function then sends the lines. */
export async function openMachineLog(
  ctx: LiveContext,
  app: string,
  id: string,
  request: LogRequest,
): Promise<LogSource> {
  const { machine } = await getVisibleMachine(ctx.db, ctx.tokenHash, app, id)
  return async (send, signal) => {
    if (request.follow) return follow(ctx, machine, request.lines, send, signal)
    await send(await readLines(ctx, machine, request.lines))
  }
}

const allMachines = { includeDeleted: false, region: null, states: null, metadata: {} }

/** Merges the logs of all machines of an app by time; while following, machines that are created later are added. */
export async function openAppLog(
  ctx: LiveContext,
  appName: string,
  request: LogRequest & { region: string | null },
): Promise<LogSource> {
  const { app } = await getMachineApp(ctx.db, ctx.tokenHash, appName)
  const filter = { ...allMachines, region: request.region }
  const machines = await listMachines(ctx.db, app.id, filter) // here, so that a refusal is the answer
  return async (send, signal) => {
    const known = new Set<string>()
    const followed: Promise<void>[] = []
    const begin = (machine: MachineDetails, lines: number) => {
      known.add(machine.id)
      followed.push(follow(ctx, machine, lines, send, signal))
    }
    const pages = await Promise.all(machines.map((machine) => readLines(ctx, machine, request.lines)))
    await send(
      pages
        .flat()
        .sort((a, b) => a.at - b.at)
        .slice(-request.lines),
    )
    if (!request.follow) return
    for (const machine of machines) begin(machine, 0)
    const unsubscribe = ctx.machineFeed.subscribe(async (change) => {
      if (signal.aborted || (change && (change.appId !== app.id || known.has(change.machineId)))) return
      for (const machine of await listMachines(ctx.db, app.id, filter).catch(() => [])) {
        if (!known.has(machine.id)) begin(machine, maxLogLines)
      }
    })
    await new Promise<void>((resolve) => {
      if (signal.aborted) resolve()
      else signal.addEventListener('abort', () => resolve(), { once: true })
    })
    unsubscribe()
    await Promise.all(followed)
  }
}

export const maxLogLines = 1000

export interface LogPageRequest {
  /** Returns lines printed after this time; null for the last lines. */
  afterMs: number | null
  instance: string | null
  region: string | null
}

const defaultLines = 100

/** Lines are written a moment after their timestamp, so newer ones may still be incomplete. */
const writeDelayMs = 200

/** Returns one page of the merged log of an app, for clients that poll. */
export async function readLogPage(ctx: LiveContext, appName: string, request: LogPageRequest): Promise<AppLogLine[]> {
  const { app } = await getMachineApp(ctx.db, ctx.tokenHash, appName)
  const { afterMs, instance } = request
  // The log of a machine that has destroyed itself can still be read by its id.
  const filter = { ...allMachines, includeDeleted: instance !== null, region: request.region }
  const machines = await listMachines(ctx.db, app.id, filter)
  const selected = machines.filter(({ id }) => instance === null || id === instance)
  const now = Date.now()
  const read = (id: string) =>
    afterMs === null ? ctx.machines.readLog(id, defaultLines) : ctx.machines.readLogAfter(id, afterMs, maxLogLines)
  const found = await Promise.all(
    selected.map(async (machine) => (await read(machine.id)).map((line) => withMachine(machine, line))),
  )
  const lines = found.flat().filter(({ at }) => at <= now - writeDelayMs)
  lines.sort((a, b) => a.at - b.at)
  return afterMs === null ? lines.slice(-defaultLines) : takeWithTies(lines, maxLogLines)
}

async function readLines(ctx: LiveContext, machine: MachineDetails, lines: number): Promise<AppLogLine[]> {
  return (await ctx.machines.readLog(machine.id, lines)).map((line) => withMachine(machine, line))
}

async function follow(
  ctx: LiveContext,
  machine: MachineDetails,
  lines: number,
  send: (lines: AppLogLine[]) => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  for await (const line of ctx.machines.followLog(machine.id, lines, signal)) await send([withMachine(machine, line)])
}

function withMachine({ id, region }: MachineDetails, line: LogLine): AppLogLine {
  return { ...line, machineId: id, region }
}

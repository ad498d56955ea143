import type { LogLine } from '../../drivers/machine/driver.ts'
import type { MachineDetails } from '../../model/app/machine.ts'
import { takeWithTies } from '../../model/app/machine-log.ts'
import { getMachineApp, getVisibleMachine, listMachines } from '../../store/app/machine.ts'
import type { LiveContext } from '../context.ts'

export interface AppLogLine extends LogLine {
  machineId: string
  region: string
}

export interface LogWish {
  lines: number
  follow: boolean
}

export type LogSource = (send: (lines: AppLogLine[]) => Promise<void>, gone: AbortSignal) => Promise<void>

/** Who may read is decided before; what is answered then is written line by line. */
export async function openMachineLog(ctx: LiveContext, app: string, id: string, wish: LogWish): Promise<LogSource> {
  const { machine } = await getVisibleMachine(ctx.db, ctx.tokenHash, app, id)
  return async (send, gone) => {
    if (wish.follow) return follow(ctx, machine, wish.lines, send, gone)
    await send(await readLines(ctx, machine, wish.lines))
  }
}

const everyone = { includeDeleted: false, region: null, states: null, metadata: {} }

/** Of all machines of an app, in the order of time; while following, also those that come later. */
export async function openAppLog(
  ctx: LiveContext,
  appName: string,
  wish: LogWish & { region: string | null },
): Promise<LogSource> {
  const { app } = await getMachineApp(ctx.db, ctx.tokenHash, appName)
  const filter = { ...everyone, region: wish.region }
  return async (send, gone) => {
    const known = new Set<string>()
    const followed: Promise<void>[] = []
    const begin = (machine: MachineDetails, lines: number) => {
      known.add(machine.id)
      followed.push(follow(ctx, machine, lines, send, gone))
    }
    const machines = await listMachines(ctx.db, app.id, filter)
    const before = await Promise.all(machines.map((machine) => readLines(ctx, machine, wish.lines)))
    await send(
      before
        .flat()
        .sort((a, b) => a.at - b.at)
        .slice(-wish.lines),
    )
    if (!wish.follow) return
    for (const machine of machines) begin(machine, 0)
    const unsubscribe = ctx.machineFeed.subscribe(async (change) => {
      if (gone.aborted || (change && (change.appId !== app.id || known.has(change.machineId)))) return
      for (const machine of await listMachines(ctx.db, app.id, filter).catch(() => [])) {
        if (!known.has(machine.id)) begin(machine, mostLines)
      }
    })
    await new Promise<void>((resolve) => {
      if (gone.aborted) resolve()
      else gone.addEventListener('abort', () => resolve(), { once: true })
    })
    unsubscribe()
    await Promise.all(followed)
  }
}

export const mostLines = 1000

export interface LogPageWish {
  /** Only what was printed after it; null for the last lines there are. */
  afterMs: number | null
  instance: string | null
  region: string | null
}

const firstLines = 100

/** A line is written a moment after the time it bears, so that what is newer may not be there yet. */
const writingMs = 200

/** What the machines of an app said, in the order of time, for clients that ask again and again. */
export async function readLogPage(ctx: LiveContext, appName: string, wish: LogPageWish): Promise<AppLogLine[]> {
  const { app } = await getMachineApp(ctx.db, ctx.tokenHash, appName)
  const { afterMs, instance } = wish
  const machines = await listMachines(ctx.db, app.id, { ...everyone, region: wish.region })
  const asked = machines.filter(({ id }) => instance === null || id === instance)
  const now = Date.now()
  const read = (id: string) =>
    afterMs === null ? ctx.machines.readLog(id, firstLines) : ctx.machines.readLogAfter(id, afterMs, mostLines)
  const found = await Promise.all(
    asked.map(async (machine) => (await read(machine.id)).map((line) => withMachine(machine, line))),
  )
  const lines = found.flat().filter(({ at }) => at <= now - writingMs)
  lines.sort((a, b) => a.at - b.at)
  return afterMs === null ? lines.slice(-firstLines) : takeWithTies(lines, mostLines)
}

async function readLines(ctx: LiveContext, machine: MachineDetails, lines: number): Promise<AppLogLine[]> {
  return (await ctx.machines.readLog(machine.id, lines)).map((line) => withMachine(machine, line))
}

async function follow(
  ctx: LiveContext,
  machine: MachineDetails,
  lines: number,
  send: (lines: AppLogLine[]) => Promise<void>,
  gone: AbortSignal,
): Promise<void> {
  for await (const line of ctx.machines.followLog(machine.id, lines, gone)) await send([withMachine(machine, line)])
}

function withMachine({ id, region }: MachineDetails, line: LogLine): AppLogLine {
  return { ...line, machineId: id, region }
}

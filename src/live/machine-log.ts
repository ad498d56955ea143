import type { LogLine } from '../drivers/machine.ts'
import type { MachineDetails } from '../model/machine.ts'
import { getMachineApp, getVisibleMachine, listMachines } from '../store/machine.ts'
import type { LiveContext } from './context.ts'

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

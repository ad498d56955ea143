import type { MachineDetails } from '../../model/app/machine.ts'
import { machineLimits } from '../../model/app/machine-limits.ts'
import { badRequest, preconditionFailed } from '../../model/errors.ts'
import { getVisibleMachine } from '../../store/app/machine.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { getStarted } from './machine.ts'

export interface Memory {
  limitMb: number
  availableMb: number
}

const megabyte = 1024 ** 2

export async function readMemory(ctx: LiveContext, app: string, id: string): Promise<Memory> {
  const { machine } = await getVisibleMachine(ctx.db, ctx.tokenHash, app, id)
  return memoryOf(ctx, machine)
}

async function memoryOf(ctx: LiveContext, machine: MachineDetails): Promise<Memory> {
  const { memoryMb } = machineLimits(machine.config)
  if (machine.state !== 'started') return { limitMb: memoryMb, availableMb: memoryMb }
  const memory = ctx.machines.readMemory(machine.id) ?? {
    limitBytes: memoryMb * megabyte,
    usedBytes: sumRss(await withDeadline(ctx.machines.listProcesses(machine.id), 'the machine')),
  }
  const limitMb = Math.round(memory.limitBytes / megabyte)
  return { limitMb, availableMb: Math.max(0, limitMb - Math.ceil(memory.usedBytes / megabyte)) }
}

function sumRss(processes: { rss: number }[]): number {
  return processes.reduce((bytes, { rss }) => bytes + rss, 0)
}

/** Changes the limit until the next start, which applies the limit of the machine's configuration again. */
export async function setMemory(ctx: LiveContext, app: string, id: string, limitMb: number): Promise<Memory> {
  const { machine } = await getStarted(ctx, app, id, 'write')
  const maxMb = machine.config.guest?.max_memory_mb ?? machineLimits(machine.config).memoryMb
  if (limitMb > maxMb) throw badRequest(`limit_mb must be at most ${maxMb}, the maximum of the machine's config.guest`)
  if (ctx.machines.readMemory(machine.id) === undefined)
    throw preconditionFailed('failed_precondition: this host has no control groups to limit the memory of machines')
  const fits = await withDeadline(ctx.machines.setMemoryLimit(machine.id, limitMb * megabyte), 'the machine')
  if (!fits) throw preconditionFailed(`failed_precondition: the machine uses more than ${limitMb} MB`)
  return memoryOf(ctx, machine)
}

/** Returns how many megabytes the host got back. */
export async function reclaimMemoryOf(ctx: LiveContext, app: string, id: string, amountMb?: number): Promise<number> {
  const { machine } = await getStarted(ctx, app, id, 'write')
  const bytes = (amountMb ?? machineLimits(machine.config).memoryMb) * megabyte
  const freed = await withDeadline(ctx.machines.reclaimMemory(machine.id, bytes), 'the machine')
  return Math.floor(freed / megabyte)
}

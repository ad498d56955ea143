// Only the holder of a lease may change the machine until the lease expires.
import { requireWriter } from '../../model/account/caller.ts'
import type { Caller } from '../../model/account/token.ts'
import type { MachineDetails, MachineLease } from '../../model/app/machine.ts'
import { badRequest, conflict, notFound } from '../../model/errors.ts'
import { randomText } from '../../model/ids.ts'
import { getVisibleMachine, lockMachine, type MachineApp, machineNotFound } from '../../store/app/machine.ts'
import { clearLease, setLease } from '../../store/app/machine-command.ts'
import type { Tx } from '../../store/db.ts'
import type { Context } from '../context.ts'

/** Identifies a machine, with the lease nonce that the caller sent. */
export interface MachineKey {
  app: string
  id: string
  nonce: string | undefined
}

export interface LeasedMachine {
  machine: MachineDetails
  lease: MachineLease
}

const defaultSeconds = 30
const maxSeconds = 86_400

/** Checks that the caller may write, and runs `change` with the machine locked. */
export async function changeMachine<T>(
  ctx: Context,
  key: Omit<MachineKey, 'nonce'>,
  change: (tx: Tx, machine: MachineDetails, beside: { caller: Caller; app: MachineApp }) => Promise<T>,
): Promise<T> {
  const { caller, app } = await getVisibleMachine(ctx.db, ctx.tokenHash, key.app, key.id)
  requireWriter(caller)
  return ctx.db.transaction(async (tx) => {
    const machine = await lockMachine(tx, key.id)
    if (!machine) throw machineNotFound()
    return change(tx, machine, { caller, app })
  })
}

/** Like changeMachine, but rejects the change when another caller holds the lease. */
export function changeLeasedMachine<T>(
  ctx: Context,
  key: MachineKey,
  change: (tx: Tx, machine: MachineDetails, beside: { caller: Caller; app: MachineApp }) => Promise<T>,
): Promise<T> {
  return changeMachine(ctx, key, (tx, machine, beside) => {
    requireLease(machine, key.nonce)
    return change(tx, machine, beside)
  })
}

function requireLease({ id, lease }: Pick<MachineDetails, 'id' | 'lease'>, nonce: string | undefined): void {
  if (!lease || lease.nonce === nonce) return
  const until = new Date(lease.expiresAt * 1000).toISOString().replace('.000Z', 'Z')
  const message = `machine ID ${id} lease currently held by ${lease.owner}, expires at ${until}`
  throw conflict(message, { fields: { status: 'error', message, code: 'invalid' } })
}

export function newNonce(): string {
  return randomText(12, '0123456789abcdef')
}

export async function getLease(ctx: Context, app: string, id: string): Promise<LeasedMachine> {
  const { machine } = await getVisibleMachine(ctx.db, ctx.tokenHash, app, id)
  if (!machine.lease) throw notFound('lease not found')
  return { machine, lease: machine.lease }
}

/** Acquires a lease, or extends the caller's own. */
export function acquireLease(
  ctx: Context,
  key: MachineKey,
  request: { ttl?: number | undefined; description?: string | undefined },
): Promise<LeasedMachine> {
  const seconds = request.ttl || defaultSeconds
  return changeLeasedMachine(ctx, key, async (tx, machine, { caller }) => {
    if (seconds < 1 || seconds > maxSeconds) throw badRequest(`ttl must be from 1 to ${maxSeconds} seconds`)
    if (machine.state === 'destroyed') throw machineNotFound()
    const nonce = machine.lease?.nonce ?? newNonce()
    const description = request.description ?? machine.lease?.description ?? ''
    await setLease(tx, machine.id, { nonce, owner: caller.tokenId, description, seconds })
    const leased = (await lockMachine(tx, machine.id))!
    return { machine: leased, lease: leased.lease! }
  })
}

export function releaseLease(ctx: Context, key: MachineKey): Promise<void> {
  return changeMachine(ctx, key, async (tx, machine) => {
    if (!key.nonce) throw badRequest('fly-machine-lease-nonce is required')
    if (machine.lease?.nonce !== key.nonce) throw badRequest('fly-machine-lease-nonce does not match the lease')
    await clearLease(tx, machine.id)
  })
}

import { forbidden, unauthorized } from '../errors.ts'
import type { Caller } from './token.ts'

/** A sandbox token opens nothing on the platform address, so there it is as good as none. */
export function requireCaller<C extends Caller>(caller: C | undefined): C {
  if (!caller || caller.kind === 'sandbox') throw unauthorized('invalid token')
  return caller
}

/** On the sandbox address every kind of token counts; what it may see is decided in the statement. */
export function requireSandboxCaller(caller: Caller | undefined): Caller {
  if (!caller) throw unauthorized('invalid token')
  return caller
}

export function requireWriter(caller: Caller): void {
  if (caller.kind === 'read') throw forbidden('this token may only read')
}

/** The Postgres operations know no 403. */
export function requireClusterWriter(caller: Caller): void {
  if (caller.kind === 'read') throw unauthorized('this token may only read')
}

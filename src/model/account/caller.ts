import { forbidden, unauthorized } from '../errors.ts'
import type { Attenuation } from './macaroon.ts'
import type { Caller } from './token.ts'

/** Sandbox tokens are not valid for the platform API. */
export function requireCaller<C extends Caller>(caller: C | undefined): C {
  if (!caller || caller.kind === 'sandbox') throw unauthorized('invalid token')
  return caller
}

/** The sandbox API accepts every kind of token; the SQL statements limit what each may see. */
export function requireSandboxCaller(caller: Caller | undefined): Caller {
  if (!caller) throw unauthorized('invalid token')
  return caller
}

export function requireWriter(caller: Caller): void {
  if (caller.kind === 'read') throw forbidden('this token may only read')
}

/** The Postgres operations document no 403, so this is a 401. */
export function requireClusterWriter(caller: Caller): void {
  if (caller.kind === 'read') throw unauthorized('this token may only read')
}

/** The context of a request. */
interface Attenuated {
  attenuation: Attenuation | undefined
}

/** For rights that are not passed on with an attenuated token: whatever it created would have none of its limits. */
export function requireFullToken(ctx: Attenuated): void {
  if (ctx.attenuation) throw forbidden('a token to which caveats were appended may not do this')
}

/** Only the operator's own token may name files of the host. */
export function isOperator(ctx: Attenuated, caller: Caller): boolean {
  return caller.kind === 'root' && ctx.attenuation === undefined
}

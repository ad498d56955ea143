import type { RawData, WebSocket } from 'ws'
import type { LiveContext } from '../../live/context.ts'
import type { SandboxDetails } from '../../model/sandbox/sandbox.ts'

export interface ControlCall {
  ctx: LiveContext
  sandbox: SandboxDetails
  args: URLSearchParams
  socket: WebSocket
  /** Reports that the operation has ended; clients read an absent `exitCode` as 0. */
  complete(args: { exitCode: number } & Record<string, unknown>): void
  /** Reports that the operation has ended with an error. */
  fail(error: unknown): void
}

/** A running operation, which receives the messages of the client. */
export interface ControlRun {
  message(data: RawData, isBinary: boolean): void
  /** Called when the client disconnects. */
  leave(): void
}

export type ControlOperation = (call: ControlCall) => Promise<ControlRun>

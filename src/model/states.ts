import { wrongState } from './errors.ts'

/**
 * One row of a state table.
 *
 * A row with `outcomes` is a working state: exactly one reconcile step, named after the state, runs until it reports
 * one of them. A row with `keeps` is a state that the loop maintains until a command or an outcome ends it. A row with
 * neither is at rest.
 */
export interface StateRow<S extends string> {
  /** The commands callers may give in this state, and the state each leads to. */
  commands?: Readonly<Record<string, S>>
  /** The results the step may report, and the state each leads to. */
  outcomes?: Readonly<Record<string, S>>
  /** The condition that the step maintains in this state. */
  keeps?: string
  /** After this long without progress the loop reports `failed` on the step's behalf. */
  deadlineMinutes?: number
}

export type StateTable = Readonly<Record<string, StateRow<string>>>

/** Returns the table unchanged; the type requires every target to be a row of the table. */
export function defineStates<const T extends { [S in keyof T]: StateRow<keyof T & string> }>(table: T): T {
  return table
}

export type State<T> = keyof T & string
export type WorkingState<T> = {
  [S in keyof T]: T[S] extends { outcomes: object } | { keeps: string } ? S : never
}[keyof T] &
  string
export type Outcome<T, S extends keyof T> = T[S] extends { outcomes: infer O } ? keyof O & string : never

export function nextState(table: StateTable, from: string, event: string): string {
  const row = table[from]
  const to = row?.commands?.[event] ?? row?.outcomes?.[event]
  if (to === undefined) throw wrongState(from, event, offeredCommands(table, from))
  return to
}

/** Commands that only the platform gives. The API has no operation of these names, so refusals do not offer them. */
const ownCommands: ReadonlySet<string> = new Set(['launch', 'skip launch', 'use', 'remove', 'abandon', 'expire'])

function offeredCommands(table: StateTable, state: string): string[] {
  return commandsIn(table, state).filter((command) => !ownCommands.has(command))
}

export function commandsIn(table: StateTable, state: string): string[] {
  return Object.keys(table[state]?.commands ?? {})
}

export function isWorking(table: StateTable, state: string): boolean {
  const row = table[state]
  return row?.outcomes !== undefined || row?.keeps !== undefined
}

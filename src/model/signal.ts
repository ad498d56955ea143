import { constants } from 'node:os'
import { badRequest } from './errors.ts'

/** The number of a signal given as `TERM`, `SIGTERM` or `15`, in any case. */
export function readSignal(text: string | number): number {
  const word = String(text).trim().toUpperCase()
  const named = (constants.signals as Record<string, number>)[word.startsWith('SIG') ? word : `SIG${word}`]
  const number = named ?? (/^\d{1,2}$/.test(word) ? Number(word) : 0)
  if (number < 1 || number > 64)
    throw badRequest(`${JSON.stringify(text)} is not a signal; try TERM, HUP, USR1 or a number`)
  return number
}

/** Returns a name such as `SIGTERM`, or the number of a signal without a name. */
export function signalName(text: string | number): string {
  const number = readSignal(text)
  const [name] = Object.entries(constants.signals).find(([, value]) => value === number) ?? [String(number)]
  return name
}

import { type Static, Type } from 'typebox'
import type { Micros } from '../time.ts'
import { newLabel } from './restore.ts'

export const RecoverRequest = Type.Object(
  {
    accept_loss: Type.Optional(
      Type.Boolean({ description: 'Recover what precedes damage of the archive, and lose what follows it.' }),
    ),
  },
  { title: 'RecoverRequest', examples: [{}] },
)
export type RecoverRequest = Static<typeof RecoverRequest>

export const DiscardedData = Type.Object(
  { discarded: Type.Array(Type.String(), { description: 'The names of the removed data directories.' }) },
  { title: 'PostgresDiscardedData' },
)

/** Where the data directory is moved to, in the directory of the cluster. */
export function asideName(at: Micros): string {
  return `damaged-${newLabel(at).slice(0, -1)}`
}

/** The command that the health of a cluster names when its files are damaged. */
export function recoverHint(clusterId: string): string {
  return `run: berth postgres recover ${clusterId}`
}

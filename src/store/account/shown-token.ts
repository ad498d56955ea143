import type { Caller } from '../../model/account/token.ts'
import type { Db } from '../db.ts'
import { callerColumns } from './token.ts'

/** The valid token with this hash. The edge uses it, whose database role cannot read the table of tokens. */
export async function findShownToken(db: Pick<Db, 'read'>, hash: Buffer): Promise<Caller | undefined> {
  const rows = await db.read<Caller>({
    name: 'find-shown-token',
    text: `select ${callerColumns} from find_token_for_edge($1)`,
    values: [hash],
  })
  return rows[0]
}

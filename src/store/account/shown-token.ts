import type { Caller } from '../../model/account/token.ts'
import type { Db } from '../db.ts'
import { byHash, callerColumns, type TokenExpiry } from './token.ts'

/** Like `listTokenExpiries`, for the edge. */
export async function listShownTokenExpiries(
  db: Pick<Db, 'read'>,
  hashes: string[],
): Promise<Map<string, number | null>> {
  const rows = await db.read<TokenExpiry>({
    name: 'list-shown-token-expiries',
    text: 'select token_hash as hash, token_expires_at as "expiresAt" from list_token_expiries_for_edge($1)',
    values: [hashes.map((hash) => Buffer.from(hash, 'base64'))],
  })
  return byHash(rows)
}

/** The valid token with this hash. The edge uses it, whose database role cannot read the table of tokens. */
export async function findShownToken(db: Pick<Db, 'read'>, hash: Buffer): Promise<Caller | undefined> {
  const rows = await db.read<Caller>({
    name: 'find-shown-token',
    text: `select ${callerColumns} from find_token_for_edge($1)`,
    values: [hash],
  })
  return rows[0]
}

import type { ReplayCacheRule } from '../../model/app/machine-config.ts'
import { type PathPrefix, parsePathPrefix } from '../../model/path-prefix.ts'

/** Which cookie or header field of requests below a path identifies a session whose replays are cached. */
export interface SessionRule extends PathPrefix {
  type: 'cookie' | 'header'
  /** Header names are in lowercase; cookie names are case-sensitive. */
  name: string
  seconds: number
  allowsBypass: boolean
}

/** Sorts rules by precedence: longer paths first, then rules for one host before rules for all. */
export function parseSessionRules(given: ReplayCacheRule[] | undefined): SessionRule[] | undefined {
  if (!given?.length) return undefined
  const rules = given.flatMap(({ path_prefix, ttl_seconds, type, name, allow_bypass }) => {
    const prefix = parsePathPrefix(path_prefix)
    if (!prefix) return []
    const rule = { type, name: type === 'header' ? name.toLowerCase() : name, seconds: ttl_seconds }
    return [{ ...prefix, ...rule, allowsBypass: allow_bypass === true }]
  })
  return rules.toSorted((a, b) => b.path.length - a.path.length || b.host.length - a.host.length)
}

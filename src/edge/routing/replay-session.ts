// Replays that are repeated for one client at a time. The port names a cookie or a field of requests, and those with the
// same value go where the first of them was sent.
import { hash } from 'node:crypto'
import type { ReplayCacheRule } from '../../model/app/machine-config.ts'
import { isBelow, type PathPrefix, parsePathPrefix } from '../../model/path-prefix.ts'
import { fieldOf, type RequestHead } from '../http/message.ts'

export interface SessionRule extends PathPrefix {
  type: 'cookie' | 'header'
  /** Of a field in lowercase; the names of cookies are what they are. */
  name: string
  seconds: number
  allowsBypass: boolean
}

/** Requests that belong together. */
export interface ReplaySession {
  appId: string
  key: string
  rule: SessionRule
}

/** The longest path first, and of equals one of a host before one of all. Undefined when there are none. */
export function sessionRulesOf(given: ReplayCacheRule[] | undefined): SessionRule[] | undefined {
  if (!given?.length) return undefined
  const rules = given.flatMap(({ path_prefix, ttl_seconds, type, name, allow_bypass }) => {
    const prefix = parsePathPrefix(path_prefix)
    if (!prefix) return []
    const rule = { type, name: type === 'header' ? name.toLowerCase() : name, seconds: ttl_seconds }
    return [{ ...prefix, ...rule, allowsBypass: allow_bypass === true }]
  })
  return rules.toSorted((a, b) => b.path.length - a.path.length || b.host.length - a.host.length)
}

/** Undefined when the request has no value that one could know it by. */
export function sessionOf(rules: SessionRule[], appId: string, head: RequestHead): ReplaySession | undefined {
  const isFor = ({ host, path }: SessionRule) => (host === '' || host === head.host) && isBelow(path, head.target)
  const rule = rules.find(isFor)
  const value = rule && (rule.type === 'cookie' ? cookieOf(head, rule.name) : fieldOf(head, rule.name))
  if (!rule || !value) return undefined
  // Values are often secrets, and may be long.
  const key = hash('sha256', JSON.stringify([appId, head.host, rule.path, rule.type, rule.name, value]), 'base64')
  return { appId, key, rule }
}

function cookieOf({ fields }: RequestHead, name: string): string | undefined {
  for (let index = 1; index < fields.length; index += 3) {
    if (fields[index] !== 'cookie') continue
    for (const pair of fields[index + 1]!.split(';')) {
      const at = pair.indexOf('=')
      if (at > 0 && pair.slice(0, at).trim() === name) return pair.slice(at + 1).trim()
    }
  }
  return undefined
}

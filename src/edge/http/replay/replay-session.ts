import { hash } from 'node:crypto'
import { isBelow } from '../../../model/path-prefix.ts'
import type { SessionRule } from '../../routing/session-rule.ts'
import { fieldOf, type RequestHead } from '../message.ts'
import { trimSpace } from '../syntax.ts'

/** Requests with the same value of a cookie or header field. A replay of one of them is repeated for the others. */
export interface ReplaySession {
  appId: string
  key: string
  rule: SessionRule
}

/** Returns undefined when no rule applies or the request lacks the cookie or field. */
export function findSession(rules: SessionRule[], appId: string, head: RequestHead): ReplaySession | undefined {
  const applies = ({ host, path }: SessionRule) => (host === '' || host === head.host) && isBelow(path, head.target)
  const rule = rules.find(applies)
  const value = rule && (rule.type === 'cookie' ? findCookie(head, rule.name) : fieldOf(head, rule.name))
  if (!rule || !value) return undefined
  // Hashed, because values are often secrets and may be long.
  const key = hash('sha256', JSON.stringify([appId, head.host, rule.path, rule.type, rule.name, value]), 'base64')
  return { appId, key, rule }
}

function findCookie({ fields }: RequestHead, name: string): string | undefined {
  for (let index = 1; index < fields.length; index += 3) {
    if (fields[index] !== 'cookie') continue
    for (const pair of fields[index + 1]!.split(';')) {
      const at = pair.indexOf('=')
      if (at > 0 && trimSpace(pair.slice(0, at)) === name) return trimSpace(pair.slice(at + 1))
    }
  }
  return undefined
}

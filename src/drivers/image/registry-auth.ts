import { statSync } from 'node:fs'
import { readTextIfPresent } from '../host/file.ts'
import type { GuardedHttp } from '../network/guarded-http.ts'
import { ImageError } from './driver.ts'
import { isObject } from './json.ts'
import { TransientError, unreachable } from './registry-retry.ts'
import { readSmallBody } from './small-body.ts'

export interface Credentials {
  username: string
  password: string
}

const maxTokenBytes = 64 * 1024

/** Reads `registry.json` of a home: an object of hosts, each with `username` and `password`. */
export function readCredentials(file: string, registry: string): Credentials | undefined {
  const text = readTextIfPresent(file)
  if (text === undefined) return undefined
  if ((statSync(file).mode & 0o077) !== 0)
    throw new Error(`${file} holds passwords and is readable by others: run chmod 600 ${file}`)
  const all: unknown = JSON.parse(text)
  const entry = isObject(all) ? all[registry] : undefined
  if (entry === undefined) return undefined
  if (isObject(entry) && typeof entry.username === 'string' && typeof entry.password === 'string')
    return { username: entry.username, password: entry.password }
  throw new Error(`${file} has no username and password for ${registry}`)
}

export interface TokenRequest {
  http: GuardedHttp
  /** The URL of the registry. */
  base: URL
  repository: string
  credentials: Credentials | undefined
  accessDenied(): ImageError
}

/** Answers a `WWW-Authenticate` challenge with the value of the `Authorization` header. */
export async function authorize(request: TokenRequest, challenge: string, signal: AbortSignal): Promise<string> {
  const { http, base, repository, credentials, accessDenied } = request
  const basic =
    credentials && `Basic ${Buffer.from(`${credentials.username}:${credentials.password}`).toString('base64')}`
  if (/^basic\b/i.test(challenge) && basic) return basic
  const { realm, service } = readChallenge(challenge)
  if (realm === undefined) throw accessDenied()
  const url = realmUrl(realm, base)
  if (service !== undefined) url.searchParams.set('service', service)
  url.searchParams.set('scope', `repository:${repository}:pull`)
  const answer = await http.send(url, { headers: { ...(basic && { authorization: basic }) }, signal })
  const status = answer.message.statusCode ?? 0
  if (status !== 200) {
    answer.message.destroy()
    if (status >= 500) throw new TransientError(`${url.host} answered ${status}`)
    throw accessDenied()
  }
  return `Bearer ${readToken((await readSmallBody(http, answer, maxTokenBytes)).toString(), base)}`
}

function readChallenge(text: string): { realm?: string; service?: string } {
  if (!/^bearer\s/i.test(text)) return {}
  const pairs = [...text.matchAll(/([a-z]+)="([^"]*)"/gi)].map(([, key, value]) => [key!.toLowerCase(), value!])
  const { realm, service } = Object.fromEntries(pairs) as { realm?: string; service?: string }
  return { ...(realm !== undefined && { realm }), ...(service !== undefined && { service }) }
}

/** A registry with TLS must name a token server with TLS. */
function realmUrl(realm: string, base: URL): URL {
  const url = URL.canParse(realm) ? new URL(realm) : undefined
  if (url && (url.protocol === 'https:' || base.protocol === 'http:')) return url
  throw unreachable(base.host, new Error('the token server is not a URL with TLS'))
}

function readToken(text: string, base: URL): string {
  try {
    const answer: unknown = JSON.parse(text)
    const token = isObject(answer) ? (answer.token ?? answer.access_token) : undefined
    if (typeof token === 'string' && /^[\x21-\x7e]+$/.test(token)) return token
  } catch {
    // Reported below like any other answer without a token.
  }
  throw new ImageError('unauthorized', `The token server of ${base.host} answered without a token`)
}

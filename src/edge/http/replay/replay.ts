import { parseDuration } from '../../../model/duration.ts'
import { trimSpace } from '../syntax.ts'

/** A program's response that asks for its request to be sent to another machine. */
export interface Replay {
  instance?: string | undefined
  preferInstance?: string | undefined
  app?: string | undefined
  /** In order of preference. */
  regions?: string[] | undefined
  elsewhere?: boolean
  /** Passed to the target unchanged. */
  state?: string | undefined
  timeoutMs?: number | undefined
  /** If the replay fails, the request goes back to its source only, or to any machine of the app but preferably the source. */
  fallback?: 'force_self' | 'prefer_self' | undefined
  transform?: Transform | undefined
  /** Only in the JSON form; with the header form, caching has header fields of its own. */
  cache?: { prefix: string; seconds: string; bypass: string } | undefined
}

export interface Transform {
  path?: string | undefined
  deleteHeaders: string[]
  setHeaders: { name: string; value: string }[]
}

export const replayField = 'fly-replay'
export const replayType = 'application/vnd.fly.replay+json'

/** A replay that is malformed. */
export class BadReplay extends Error {}

const parameter = /[\t ]*([A-Za-z_]+)[\t ]*=[\t ]*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))[\t ]*(?:;|$)/y
const plainValue = /^[\t\x20-\x7e\x80-\xff]*$/
const idPattern = /^[0-9A-Za-z-]{1,64}$/
const maxRegions = 20

/** Parses the header form, `instance=…;app=…`. */
export function parseReplay(text: string): Replay {
  const values = new Map<string, string>()
  let at = 0
  while (at < text.length) {
    parameter.lastIndex = at
    const found = parameter.exec(text)
    if (!found) throw new BadReplay(`syntax error at ${JSON.stringify(text.slice(at, at + 40))}`)
    values.set(found[1]!.toLowerCase(), found[2]?.replace(/\\(.)/g, '$1') ?? trimSpace(found[3]!))
    at = parameter.lastIndex
  }
  return createReplay((name) => values.get(name))
}

/** Parses the JSON form, which is the body of a response. */
export function parseReplayJson(text: string): Replay {
  let parsed: unknown
  try {
    parsed = JSON.parse(text)
  } catch {
    throw new BadReplay('the body is not JSON')
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed))
    throw new BadReplay('the body is not an object')
  const body = parsed as Record<string, unknown>
  const replay = createReplay((name) => readText(name, body[name]))
  const transform = body.transform === undefined || body.transform === null ? undefined : parseTransform(body.transform)
  return { ...replay, transform, cache: parseCache(body.cache) }
}

function parseCache(given: unknown): Replay['cache'] {
  if (typeof given !== 'object' || given === null) return undefined
  const { prefix, ttl, invalidate, allow_bypass } = given as Record<string, unknown>
  if (invalidate !== true && typeof prefix !== 'string') throw new BadReplay('cache has no prefix')
  return {
    prefix: invalidate === true ? 'invalidate' : String(prefix),
    seconds: String(ttl),
    bypass: String(allow_bypass),
  }
}

function readText(name: string, value: unknown): string | undefined {
  if (value === undefined || value === null) return undefined
  if (typeof value === 'string') return value
  if (typeof value === 'boolean' || typeof value === 'number') return String(value)
  if (name === 'region' && Array.isArray(value)) return value.join(',')
  throw new BadReplay(`${name} is not a string`)
}

function createReplay(value: (name: string) => string | undefined): Replay {
  const regions = value('region')
    ?.split(',')
    .map((region) => trimSpace(region).toLowerCase())
    .filter((region) => region !== '')
    .map((region) => parseId('region', region)!)
    .slice(0, maxRegions)
  const replay: Replay = {
    instance: parseId('instance', value('instance')),
    preferInstance: parseId('prefer_instance', value('prefer_instance')),
    app: parseId('app', value('app')),
    regions: regions?.length ? regions : undefined,
    elsewhere: value('elsewhere') === 'true',
    state: value('state'),
    timeoutMs: parseTimeout(value('timeout')),
    fallback: parseFallback(value('fallback')),
  }
  if (replay.state !== undefined && !plainValue.test(replay.state))
    throw new BadReplay('state contains control characters')
  if (!replay.instance && !replay.preferInstance && !replay.app && !replay.regions && !replay.elsewhere) {
    throw new BadReplay('it names neither an instance, an app, a region nor elsewhere')
  }
  return replay
}

function parseId(name: string, text: string | undefined): string | undefined {
  if (text === undefined || text === '') return undefined
  if (!idPattern.test(text)) throw new BadReplay(`${name} is not a valid name`)
  return text
}

function parseTimeout(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  const timeoutMs = parseDuration(text)
  if (timeoutMs === undefined || timeoutMs <= 0) throw new BadReplay('timeout is not a duration such as 10s')
  return timeoutMs
}

function parseFallback(text: string | undefined): Replay['fallback'] {
  if (text === undefined || text === 'force_self' || text === 'prefer_self') return text
  throw new BadReplay('fallback is neither force_self nor prefer_self')
}

const fieldName = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/
const target = /^\/[\x21\x22\x24-\x7e\x80-\xff]*$/
// Programs cannot change the fields that frame a request or tell where it came from.
const protectedField =
  /^(?:host|connection|content-length|transfer-encoding|upgrade|te|trailer|keep-alive|proxy-.*|fly-.*|forwarded|x-forwarded-.*)$/

function parseTransform(given: unknown): Transform {
  if (typeof given !== 'object' || given === null) throw new BadReplay('transform is not an object')
  const { path, delete_headers = [], set_headers = [] } = given as Record<string, unknown>
  if (path !== undefined && !(typeof path === 'string' && target.test(path)))
    throw new BadReplay('path is not a valid path')
  if (!Array.isArray(delete_headers) || !Array.isArray(set_headers))
    throw new BadReplay('delete_headers and set_headers must be lists')
  return {
    path,
    deleteHeaders: delete_headers.map((name) => parseHeaderName(name)),
    setHeaders: set_headers.map((each) => {
      const value = String(each?.value)
      if (!plainValue.test(value)) throw new BadReplay('a header value contains control characters')
      return { name: parseHeaderName(each?.name), value }
    }),
  }
}

function parseHeaderName(name: unknown): string {
  if (typeof name !== 'string' || !fieldName.test(name)) throw new BadReplay('a header has no valid name')
  if (protectedField.test(name.toLowerCase())) throw new BadReplay(`the header ${name} cannot be changed`)
  return name
}

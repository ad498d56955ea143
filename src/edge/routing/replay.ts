// The answer of a program that asks for its request to be given to another machine.
import { parseDuration } from '../../model/duration.ts'

export interface Replay {
  instance?: string | undefined
  preferInstance?: string | undefined
  app?: string | undefined
  /** In order of preference. */
  regions?: string[] | undefined
  elsewhere?: boolean
  /** Given to the target as it is. */
  state?: string | undefined
  timeoutMillis?: number | undefined
  /** Who gets the request when nobody else can have it. */
  fallback?: 'force_self' | 'prefer_self' | undefined
  transform?: Transform | undefined
  /** As the form in JSON has it; the header form has fields of its own for it. */
  cache?: { prefix: string; seconds: string; bypass: string } | undefined
}

export interface Transform {
  path?: string | undefined
  deleteHeaders: string[]
  setHeaders: { name: string; value: string }[]
}

export const replayField = 'fly-replay'
export const replayType = 'application/vnd.fly.replay+json'

/** Where a program says what it wants in a text that is not in order, the request is not replayed. */
export class BadReplay extends Error {}

const pair = /\s*([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))\s*(?:;|$)/y
const plainValue = /^[\t\x20-\x7e\x80-\xff]*$/
const id = /^[0-9A-Za-z-]{1,64}$/
const maxRegions = 20

/** `instance=…;app=…`, as the header field has it. */
export function parseReplay(text: string): Replay {
  const values = new Map<string, string>()
  let rest = 0
  while (rest < text.length) {
    pair.lastIndex = rest
    const found = pair.exec(text)
    if (!found) throw new BadReplay(`not understood from ${JSON.stringify(text.slice(rest, rest + 40))} on`)
    values.set(found[1]!.toLowerCase(), found[2]?.replace(/\\(.)/g, '$1') ?? found[3]!.trim())
    rest = pair.lastIndex
  }
  return replayOf((name) => values.get(name))
}

/** The body of an answer of the type above. */
export function parseReplayJson(text: string): Replay {
  let parsed: unknown
  try {
    parsed = JSON.parse(text)
  } catch {
    throw new BadReplay('the body is not JSON')
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) throw new BadReplay('not an object')
  const body = parsed as Record<string, unknown>
  const replay = replayOf((name) => textOf(name, body[name]))
  const transform = body.transform === undefined || body.transform === null ? undefined : transformOf(body.transform)
  return { ...replay, transform, cache: cacheOf(body.cache) }
}

function cacheOf(given: unknown): Replay['cache'] {
  if (typeof given !== 'object' || given === null) return undefined
  const { prefix, ttl, invalidate, allow_bypass } = given as Record<string, unknown>
  if (invalidate !== true && typeof prefix !== 'string') throw new BadReplay('cache has no prefix')
  return {
    prefix: invalidate === true ? 'invalidate' : String(prefix),
    seconds: String(ttl),
    bypass: String(allow_bypass),
  }
}

function textOf(name: string, value: unknown): string | undefined {
  if (value === undefined || value === null) return undefined
  if (typeof value === 'string') return value
  if (typeof value === 'boolean' || typeof value === 'number') return String(value)
  if (name === 'region' && Array.isArray(value)) return value.join(',')
  throw new BadReplay(`${name} is not a text`)
}

function replayOf(value: (name: string) => string | undefined): Replay {
  const regions = value('region')
    ?.split(',')
    .map((region) => region.trim().toLowerCase())
    .filter((region) => region !== '')
    .map((region) => idOf('region', region)!)
    .slice(0, maxRegions)
  const replay: Replay = {
    instance: idOf('instance', value('instance')),
    preferInstance: idOf('prefer_instance', value('prefer_instance')),
    app: idOf('app', value('app')),
    regions: regions?.length ? regions : undefined,
    elsewhere: value('elsewhere') === 'true',
    state: value('state'),
    timeoutMillis: timeoutOf(value('timeout')),
    fallback: fallbackOf(value('fallback')),
  }
  if (replay.state !== undefined && !plainValue.test(replay.state))
    throw new BadReplay('state holds control characters')
  if (!replay.instance && !replay.preferInstance && !replay.app && !replay.regions && !replay.elsewhere) {
    throw new BadReplay('it names no instance, app or region, and not elsewhere')
  }
  return replay
}

function idOf(name: string, text: string | undefined): string | undefined {
  if (text === undefined || text === '') return undefined
  if (!id.test(text)) throw new BadReplay(`${name} is not a name`)
  return text
}

function timeoutOf(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  const millis = parseDuration(text)
  if (millis === undefined || millis <= 0) throw new BadReplay('timeout is not a duration such as 10s')
  return millis
}

function fallbackOf(text: string | undefined): Replay['fallback'] {
  if (text === undefined || text === 'force_self' || text === 'prefer_self') return text
  throw new BadReplay('fallback is neither force_self nor prefer_self')
}

const fieldName = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/
const target = /^\/[\x21-\x7e\x80-\xff]*$/
// What decides where a request ends, or who sent it, is not for programs to change.
const untouchable =
  /^(?:host|connection|content-length|transfer-encoding|upgrade|te|trailer|keep-alive|proxy-.*|fly-.*|x-forwarded-.*)$/

function transformOf(given: unknown): Transform {
  if (typeof given !== 'object' || given === null) throw new BadReplay('transform is not an object')
  const { path, delete_headers = [], set_headers = [] } = given as Record<string, unknown>
  if (path !== undefined && !(typeof path === 'string' && target.test(path))) throw new BadReplay('path is not a path')
  if (!Array.isArray(delete_headers) || !Array.isArray(set_headers)) throw new BadReplay('headers are not a list')
  return {
    path,
    deleteHeaders: delete_headers.map((name) => headerName(name)),
    setHeaders: set_headers.map((each) => {
      const value = String(each?.value)
      if (!plainValue.test(value)) throw new BadReplay('a header holds control characters')
      return { name: headerName(each?.name), value }
    }),
  }
}

function headerName(name: unknown): string {
  if (typeof name !== 'string' || !fieldName.test(name)) throw new BadReplay('a header has no name')
  if (untouchable.test(name.toLowerCase())) throw new BadReplay(`the header ${name} cannot be changed`)
  return name
}

// The distribution interface, as far as fetching goes.
import { statSync } from 'node:fs'
import type { IncomingMessage } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { defaultRegistry, formatImageReference, type ImageReference } from '../../model/image.ts'
import { readTextIfPresent } from '../host/file.ts'
import { ImageError } from './driver.ts'
import { imageHttp, isLoopback, readBody } from './http.ts'
import type { ImageLimits } from './limits.ts'
import { type ImageSource, isObject, readAll } from './manifest.ts'
import type { Descriptor } from './unpack.ts'

export interface Credentials {
  username: string
  password: string
}

const accept = [
  'application/vnd.oci.image.index.v1+json',
  'application/vnd.oci.image.manifest.v1+json',
  'application/vnd.docker.distribution.manifest.list.v2+json',
  'application/vnd.docker.distribution.manifest.v2+json',
].join(', ')
const maxTokenBytes = 64 * 1024

export function registrySource(
  reference: Extract<ImageReference, { kind: 'registry' }>,
  credentials: Credentials | undefined,
  limits: ImageLimits,
): ImageSource {
  const { registry, repository } = reference
  const base = baseOf(registry)
  const http = imageHttp(base, limits.stallSeconds)
  const name = formatImageReference(reference)
  let authorization: string | undefined

  async function get(path: string, headers: Record<string, string>, signal: AbortSignal): Promise<IncomingMessage> {
    const url = new URL(path, base)
    for (let isSecond = false; ; isSecond = true) {
      const sent = { 'accept-encoding': 'identity', ...headers, ...(authorization && { authorization }) }
      const message = await http.get(url, sent, signal)
      const status = message.statusCode ?? 0
      if (status === 200 || status === 206) return message
      message.destroy()
      if (status === 401 && !isSecond)
        authorization = await authorize(message.headers['www-authenticate'] ?? '', signal)
      else throw refusal(status, message)
    }
  }

  function refusal(status: number, message: IncomingMessage): Error {
    if (status === 404) return new ImageError('not_found', `The image ${name} was not found: check its name and tag`)
    if (status === 401 || status === 403) return notAllowed()
    if (status === 429 || status >= 500)
      return new Passing(`The registry ${registry} answered ${status}`, message.headers['retry-after'])
    return new ImageError('unreachable', `The registry ${registry} answered ${status} for ${name}`)
  }

  function notAllowed(): ImageError {
    const hint = credentials
      ? 'the credentials in registry.json do not reach it'
      : 'check the name, or put credentials for it into registry.json in the home of the platform'
    return new ImageError('unauthorized', `The registry ${registry} does not give out ${name}: ${hint}`)
  }

  async function authorize(challenge: string, signal: AbortSignal): Promise<string> {
    const basic =
      credentials && `Basic ${Buffer.from(`${credentials.username}:${credentials.password}`).toString('base64')}`
    if (/^basic\b/i.test(challenge) && basic) return basic
    const asked = readChallenge(challenge)
    if (asked.realm === undefined) throw notAllowed()
    const url = realmUrl(asked.realm, base)
    if (asked.service !== undefined) url.searchParams.set('service', asked.service)
    url.searchParams.set('scope', `repository:${repository}:pull`)
    const message = await http.get(url, { ...(basic && { authorization: basic }) }, signal)
    if (message.statusCode !== 200) {
      message.destroy()
      if ((message.statusCode ?? 0) >= 500) throw new Passing(`${url.host} answered ${message.statusCode}`)
      throw notAllowed()
    }
    const text = (await readAll(limited(readBody(message, url, limits.stallSeconds), maxTokenBytes))).toString()
    return `Bearer ${readToken(text, url)}`
  }

  /** Again after what passes, as often as the limits say. */
  async function trying<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> {
    for (let tries = 1; ; tries++) {
      try {
        return await work()
      } catch (error) {
        await pause(error, tries, signal)
      }
    }
  }

  async function pause(error: unknown, tries: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if (error instanceof ImageError || !isPassing(error)) throw asUnreachable(error)
    if (tries >= limits.tries) throw asUnreachable(error)
    await sleep(Math.max(250 * tries, error instanceof Passing ? error.waitMs : 0), undefined, { signal })
  }

  function asUnreachable(error: unknown): unknown {
    const { code, message } = error as NodeJS.ErrnoException
    // Without a code it is not the network that failed.
    if (error instanceof ImageError || (!(error instanceof Passing) && code === undefined)) return error
    const reason = error instanceof Passing ? message : `The registry ${registry} cannot be reached (${code})`
    return new ImageError('unreachable', `${reason}: check its name, or try again later`, error)
  }

  async function* openBlob({ digest, size }: Descriptor, signal: AbortSignal): AsyncGenerator<Buffer> {
    const path = `/v2/${repository}/blobs/${digest}`
    let position = 0
    for (let tries = 1; position < size; tries++) {
      try {
        const message = await get(path, position > 0 ? { range: `bytes=${position}-` } : {}, signal)
        let skipped = readStart(message, position)
        for await (const chunk of readBody(message, base, limits.stallSeconds)) {
          const fresh = skipped > 0 ? chunk.subarray(Math.min(skipped, chunk.length)) : chunk
          skipped -= chunk.length - fresh.length
          position += fresh.length
          if (fresh.length > 0) yield fresh
        }
        if (position < size)
          throw new Passing(`The registry ${registry} ended ${digest} after ${position} of ${size} bytes`)
      } catch (error) {
        await pause(error, tries, signal)
      }
    }
  }

  return {
    readManifest: (digest, signal) =>
      trying(async () => {
        const path = `/v2/${repository}/manifests/${digest ?? reference.digest ?? reference.tag}`
        const message = await get(path, { accept }, signal)
        return readAll(limited(readBody(message, base, limits.stallSeconds), limits.maxManifestBytes))
      }, signal),
    openBlob,
    async close() {
      http.close()
    },
  }
}

/** What passes by itself. */
class Passing extends Error {
  readonly waitMs: number
  constructor(message: string, retryAfter?: string) {
    super(message)
    // A registry that asks for more is asked again by who wants the image.
    this.waitMs = Math.min(Number(retryAfter ?? 0) || 0, 5) * 1000
  }
}

const passingCodes = new Set([
  'ECONNRESET',
  'ECONNREFUSED',
  'ETIMEDOUT',
  'EPIPE',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ERR_STREAM_PREMATURE_CLOSE',
])

function isPassing(error: unknown): boolean {
  if (error instanceof Passing) return true
  const { code, message } = error as NodeJS.ErrnoException
  return passingCodes.has(code ?? '') || message === 'aborted'
}

function baseOf(registry: string): URL {
  const host = registry === defaultRegistry ? 'registry-1.docker.io' : registry
  const url = URL.canParse(`https://${host}`) ? new URL(`https://${host}`) : undefined
  if (!url) throw new ImageError('not_found', `${registry} is not the name of a registry`)
  return isLoopback(url.hostname) ? new URL(`http://${host}`) : url
}

/** How many of the bytes that come are known already. */
function readStart(message: IncomingMessage, position: number): number {
  if (message.statusCode !== 206) return position
  const start = Number(/^bytes (\d+)-/.exec(message.headers['content-range'] ?? '')?.[1])
  if (start === position) return 0
  message.destroy()
  throw new ImageError('damaged', 'The registry went on at another place than it was asked to')
}

async function* limited(source: AsyncIterable<Buffer>, most: number): AsyncGenerator<Buffer> {
  let bytes = 0
  for await (const chunk of source) {
    bytes += chunk.length
    if (bytes > most)
      throw new ImageError('too_large', `The registry answers with more than ${most} bytes where few were expected`)
    yield chunk
  }
}

export function readChallenge(text: string): { realm?: string; service?: string } {
  if (!/^bearer\s/i.test(text)) return {}
  const pairs = [...text.matchAll(/([a-z]+)="([^"]*)"/gi)].map(([, key, value]) => [key!.toLowerCase(), value!])
  const { realm, service } = Object.fromEntries(pairs) as { realm?: string; service?: string }
  return { ...(realm !== undefined && { realm }), ...(service !== undefined && { service }) }
}

function realmUrl(realm: string, base: URL): URL {
  const url = URL.canParse(realm) ? new URL(realm) : undefined
  const isSafe =
    url?.protocol === 'https:' || (url?.protocol === 'http:' && isLoopback(url.hostname) && base.protocol === 'http:')
  if (url && isSafe) return url
  throw new ImageError(
    'unauthorized',
    `The registry ${base.host} names a place for tokens that is not protected by TLS`,
  )
}

function readToken(text: string, url: URL): string {
  try {
    const answer: unknown = JSON.parse(text)
    const token = isObject(answer) ? (answer.token ?? answer.access_token) : undefined
    if (typeof token === 'string' && /^[\x21-\x7e]+$/.test(token)) return token
  } catch {
    // Said below, in one way.
  }
  throw new ImageError('unauthorized', `${url.host} answered without a token`)
}

/** Of the file `registry.json` in a home: an object of hosts, each with `username` and `password`. */
export function readCredentials(file: string, registry: string): Credentials | undefined {
  const text = readTextIfPresent(file)
  if (text === undefined) return undefined
  if ((statSync(file).mode & 0o077) !== 0)
    throw new Error(`${file} holds passwords and others can read it: run chmod 600 ${file}`)
  const all: unknown = JSON.parse(text)
  const entry = isObject(all) ? all[registry] : undefined
  if (entry === undefined) return undefined
  if (isObject(entry) && typeof entry.username === 'string' && typeof entry.password === 'string')
    return { username: entry.username, password: entry.password }
  throw new Error(`${file} has no username and password for ${registry}`)
}

// Reads images from registries through the OCI distribution API.
import type { IncomingMessage } from 'node:http'
import { defaultRegistry, formatImageReference, type ImageReference } from '../../model/image.ts'
import { isLoopback } from '../../model/network.ts'
import { type GuardedAnswer, type GuardedRequest, guardedHttp, type OutboundPolicy } from '../network/guarded-http.ts'
import type { Descriptor, ImageSource } from './blob.ts'
import { ImageError } from './driver.ts'
import type { ImageLimits } from './limits.ts'
import { authorize, type Credentials } from './registry-auth.ts'
import { type Retry, registryRetry, TransientError, unreachable } from './registry-retry.ts'
import { readSmallBody } from './small-body.ts'

type RegistryReference = Extract<ImageReference, { kind: 'registry' }>

const manifestTypes = [
  'application/vnd.oci.image.index.v1+json',
  'application/vnd.oci.image.manifest.v1+json',
  'application/vnd.docker.distribution.manifest.list.v2+json',
  'application/vnd.docker.distribution.manifest.v2+json',
].join(', ')

export interface RegistryAccess {
  credentials: Credentials | undefined
  policy: OutboundPolicy
  limits: ImageLimits
}

export function registrySource(reference: RegistryReference, access: RegistryAccess): ImageSource {
  const { registry, repository } = reference
  const client = registryClient(reference, access)
  const retry = registryRetry(registry, access.limits.maxTries)
  return {
    origin: registry,
    readManifest: (digest, signal) =>
      retry.run(async () => {
        const path = `/v2/${repository}/manifests/${digest ?? reference.digest ?? reference.tag}`
        const answer = await client.get(path, { headers: { accept: manifestTypes }, signal })
        return readSmallBody(client.http, answer, access.limits.maxManifestBytes)
      }, signal),
    openBlob: (descriptor, signal) => openBlob({ reference, client, retry }, descriptor, signal),
    mayReadBlob: ({ digest }, signal) =>
      retry.run(() => client.mayRead(`/v2/${repository}/blobs/${digest}`, signal), signal),
    async close() {
      client.http.close()
    },
  }
}

type RegistryClient = ReturnType<typeof registryClient>

function registryClient(reference: RegistryReference, { credentials, policy, limits }: RegistryAccess) {
  const { registry, repository } = reference
  const base = baseUrl(registry)
  const http = guardedHttp(policy, limits)
  const accessDenied = () => accessDeniedError(reference, credentials !== undefined)
  const tokenRequest = { http, base, repository, credentials, accessDenied }
  let authorization: string | undefined

  /** Sends a request, with a token if the registry asks for one. */
  async function send(path: string, request: GuardedRequest): Promise<GuardedAnswer> {
    const url = new URL(path, base)
    for (let isSecond = false; ; isSecond = true) {
      const headers = { 'accept-encoding': 'identity', ...request.headers, ...(authorization && { authorization }) }
      const answer = await http.send(url, { ...request, headers })
      // Another host must not name the server that gets the credentials for this one.
      const isChallenge = answer.message.statusCode === 401 && answer.url.origin === base.origin
      if (!isChallenge || isSecond) return answer
      answer.message.destroy()
      authorization = await authorize(tokenRequest, answer.message.headers['www-authenticate'] ?? '', request.signal)
    }
  }

  return {
    http,
    /** Throws unless the request succeeds. */
    async get(path: string, request: GuardedRequest): Promise<GuardedAnswer> {
      const answer = await send(path, request)
      const status = answer.message.statusCode ?? 0
      if (status === 200 || status === 206) return answer
      answer.message.destroy()
      if (answer.url.origin !== base.origin) throw new TransientError(`${answer.url.host} answered ${status}`)
      if (status === 401 || status === 403) throw accessDenied()
      throw statusError(status, answer.message, reference)
    },
    /** Whether the registry lets this caller read the path. A redirect to where the content is stored counts as a yes. */
    async mayRead(path: string, signal: AbortSignal): Promise<boolean> {
      const { message } = await send(path, { method: 'HEAD', followRedirects: false, signal })
      message.destroy()
      return message.statusCode === 200 || message.statusCode === 302 || message.statusCode === 307
    },
  }
}

function baseUrl(registry: string): URL {
  const host = registry === defaultRegistry ? 'registry-1.docker.io' : registry
  const url = URL.canParse(`https://${host}`) ? new URL(`https://${host}`) : undefined
  if (!url) throw new ImageError('not_found', `${registry} is not the name of a registry`)
  return isLoopback(url.hostname) ? new URL(`http://${host}`) : url
}

function statusError(status: number, message: IncomingMessage, reference: RegistryReference): Error {
  if (status === 404) {
    const name = formatImageReference(reference)
    return new ImageError('not_found', `The image ${name} was not found: check its name and tag`)
  }
  const reason = `The registry answered ${status}`
  if (status === 429 || status >= 500) return new TransientError(reason, message.headers['retry-after'])
  return unreachable(reference.registry, new Error(reason))
}

function accessDeniedError(reference: RegistryReference, hasCredentials: boolean): ImageError {
  const hint = hasCredentials
    ? 'the credentials in registry.json do not give access to it'
    : 'check the name, or add credentials for the registry to registry.json in the home of the platform'
  const name = formatImageReference(reference)
  return new ImageError('unauthorized', `The registry ${reference.registry} denies access to ${name}: ${hint}`)
}

interface BlobContext {
  reference: RegistryReference
  client: RegistryClient
  retry: Retry
}

/** Yields a blob. After a broken connection the download resumes where it stopped. */
async function* openBlob(
  { reference, client, retry }: BlobContext,
  { digest, size }: Descriptor,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  const { registry, repository } = reference
  const path = `/v2/${repository}/blobs/${digest}`
  let position = 0
  for (let tries = 1; position < size; tries++) {
    try {
      const headers: Record<string, string> = position > 0 ? { range: `bytes=${position}-` } : {}
      const answer = await client.get(path, { headers, signal })
      let toSkip = countRepeatedBytes(answer.message, position)
      for await (const chunk of client.http.readBody(answer)) {
        const fresh = toSkip > 0 ? chunk.subarray(Math.min(toSkip, chunk.length)) : chunk
        toSkip -= chunk.length - fresh.length
        position += fresh.length
        if (fresh.length > 0) yield fresh
      }
      if (position < size)
        throw new TransientError(`The registry ${registry} ended ${digest} after ${position} of ${size} bytes`)
    } catch (error) {
      await retry.pause(error, tries, signal)
    }
  }
}

/** Returns how many bytes of the answer were received before: all of them if the registry ignored the range. */
function countRepeatedBytes(message: IncomingMessage, position: number): number {
  if (message.statusCode !== 206) return position
  const start = Number(/^bytes (\d+)-/.exec(message.headers['content-range'] ?? '')?.[1])
  if (start === position) return 0
  message.destroy()
  throw new ImageError('damaged', 'The registry resumed the download at the wrong position')
}

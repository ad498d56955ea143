// Reads images from registries through the OCI distribution API.
import type { IncomingMessage } from 'node:http'
import { defaultRegistry, formatImageReference, type ImageReference } from '../../model/image.ts'
import { isLoopback } from '../../model/network.ts'
import type { Descriptor, ImageSource } from './blob.ts'
import { ImageError } from './driver.ts'
import { imageHttp, readBody, readSmallBody } from './http.ts'
import type { ImageLimits } from './limits.ts'
import { authorize, type Credentials } from './registry-auth.ts'
import { type Retry, registryRetry, TransientError } from './registry-retry.ts'

type RegistryReference = Extract<ImageReference, { kind: 'registry' }>

const manifestTypes = [
  'application/vnd.oci.image.index.v1+json',
  'application/vnd.oci.image.manifest.v1+json',
  'application/vnd.docker.distribution.manifest.list.v2+json',
  'application/vnd.docker.distribution.manifest.v2+json',
].join(', ')

export function registrySource(
  reference: RegistryReference,
  credentials: Credentials | undefined,
  limits: ImageLimits,
): ImageSource {
  const { registry, repository } = reference
  const client = registryClient(reference, credentials, limits)
  const retry = registryRetry(registry, limits.maxTries)
  return {
    readManifest: (digest, signal) =>
      retry.run(async () => {
        const path = `/v2/${repository}/manifests/${digest ?? reference.digest ?? reference.tag}`
        const message = await client.get(path, { accept: manifestTypes }, signal)
        const { stallSeconds, maxManifestBytes: maxBytes } = limits
        return readSmallBody(message, client.base, { stallSeconds, maxBytes })
      }, signal),
    openBlob: (descriptor, signal) => openBlob({ reference, client, retry, limits }, descriptor, signal),
    async close() {
      client.close()
    },
  }
}

interface RegistryClient {
  base: URL
  /** Sends a request to the registry, with a token if it asks for one, and throws unless it succeeds. */
  get(path: string, headers: Record<string, string>, signal: AbortSignal): Promise<IncomingMessage>
  close(): void
}

function registryClient(
  reference: RegistryReference,
  credentials: Credentials | undefined,
  { stallSeconds }: ImageLimits,
): RegistryClient {
  const { registry, repository } = reference
  const base = baseUrl(registry)
  const http = imageHttp(base, stallSeconds)
  const accessDenied = () => accessDeniedError(reference, credentials !== undefined)
  const tokenRequest = { http, base, repository, credentials, stallSeconds, accessDenied }
  let authorization: string | undefined
  return {
    base,
    close: () => http.close(),
    async get(path, headers, signal) {
      const url = new URL(path, base)
      for (let isSecond = false; ; isSecond = true) {
        const sent = { 'accept-encoding': 'identity', ...headers, ...(authorization && { authorization }) }
        const message = await http.get(url, sent, signal)
        const status = message.statusCode ?? 0
        if (status === 200 || status === 206) return message
        message.destroy()
        if (status === 401 && !isSecond)
          authorization = await authorize(tokenRequest, message.headers['www-authenticate'] ?? '', signal)
        else if (status === 401 || status === 403) throw accessDenied()
        else throw statusError(status, message, reference)
      }
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
  const { registry } = reference
  const name = formatImageReference(reference)
  if (status === 404) return new ImageError('not_found', `The image ${name} was not found: check its name and tag`)
  if (status === 429 || status >= 500)
    return new TransientError(`The registry ${registry} answered ${status}`, message.headers['retry-after'])
  return new ImageError('unreachable', `The registry ${registry} answered ${status} for ${name}`)
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
  limits: ImageLimits
}

/** Yields a blob. After a broken connection the download resumes where it stopped. */
async function* openBlob(
  { reference, client, retry, limits }: BlobContext,
  { digest, size }: Descriptor,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  const { registry, repository } = reference
  const path = `/v2/${repository}/blobs/${digest}`
  let position = 0
  for (let tries = 1; position < size; tries++) {
    try {
      const message = await client.get(path, position > 0 ? { range: `bytes=${position}-` } : {}, signal)
      let toSkip = countRepeatedBytes(message, position)
      for await (const chunk of readBody(message, client.base, limits.stallSeconds)) {
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

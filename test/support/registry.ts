// Registries on loopback: Debian's docker-registry, and a fake one that misbehaves on request.
import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Blob, type ImageSpec, type MadeImage, makeImage } from './image.ts'
import { freePort } from './port.ts'
import { until } from './until.ts'

export interface Registry {
  /** The host with its port, as in an image name. */
  host: string
  close(): Promise<void>
}

/** Starts an empty `docker-registry` of Debian on a free loopback port. */
export async function startRegistry(): Promise<Registry> {
  const directory = mkdtempSync(join(tmpdir(), 'berth-registry-'))
  const host = `127.0.0.1:${await freePort()}`
  const config = {
    version: 0.1,
    log: { level: 'error' },
    storage: { filesystem: { rootdirectory: `${directory}/data` } },
    http: { addr: host },
  }
  // JSON is valid YAML.
  writeFileSync(`${directory}/config.yml`, JSON.stringify(config))
  const child = spawn('docker-registry', ['serve', `${directory}/config.yml`], { stdio: 'ignore', cwd: '/' })
  const ended = new Promise<void>((resolve) => child.once('close', () => resolve()).once('error', () => resolve()))
  async function close(): Promise<void> {
    child.kill('SIGKILL')
    await ended
    rmSync(directory, { recursive: true, force: true })
  }
  try {
    await until(async () => (await fetch(`http://${host}/v2/`).catch(() => undefined))?.ok ?? false)
  } catch (error) {
    await close()
    throw error
  }
  return { host, close }
}

export interface PushedImage {
  /** `host/repository:tag`. */
  reference: string
  /** The digest of the manifest. */
  digest: string
}

export async function pushImage(
  registry: Pick<Registry, 'host'>,
  { repository, tag = 'latest', ...spec }: ImageSpec & { repository: string; tag?: string },
): Promise<PushedImage> {
  const image = makeImage(spec)
  await pushBlobs(registry, repository, image)
  await pushManifest(registry, repository, tag, image.manifest)
  return { reference: `${registry.host}/${repository}:${tag}`, digest: image.manifest.digest }
}

export async function pushBlobs({ host }: Pick<Registry, 'host'>, repository: string, image: MadeImage): Promise<void> {
  for (const { digest, content } of [image.config, ...image.layers]) {
    const begun = await expectOk(fetch(`http://${host}/v2/${repository}/blobs/uploads/`, { method: 'POST' }))
    const place = new URL(begun.headers.get('location')!, `http://${host}`)
    place.searchParams.set('digest', digest)
    const headers = { 'content-type': 'application/octet-stream' }
    await expectOk(fetch(place, { method: 'PUT', body: new Uint8Array(content), headers }))
  }
}

export async function pushManifest(
  { host }: Pick<Registry, 'host'>,
  repository: string,
  tag: string,
  { content, mediaType }: Blob,
): Promise<void> {
  const headers = { 'content-type': mediaType }
  await expectOk(
    fetch(`http://${host}/v2/${repository}/manifests/${tag}`, {
      method: 'PUT',
      body: new Uint8Array(content),
      headers,
    }),
  )
}

async function expectOk(answer: Promise<Response>): Promise<Response> {
  const response = await answer
  if (!response.ok) throw new Error(`${response.url} answered ${response.status}: ${await response.text()}`)
  return response
}

export interface FakeRegistry extends Registry {
  /** Method, path and range of all requests, in order. */
  requests: { path: string; headers: IncomingMessage['headers'] }[]
}

export type Answer = (
  request: IncomingMessage,
  response: ServerResponse,
  path: string,
) => boolean | undefined | Promise<boolean | undefined>

/** Serves the images of any repository by tag or digest, unless `answer` returns true because it has answered. */
export async function fakeRegistry(
  images: Record<string, Blob>,
  blobs: Blob[],
  answer: Answer = () => false,
): Promise<FakeRegistry> {
  const requests: FakeRegistry['requests'] = []
  const manifests = new Map(
    Object.entries(images).flatMap(([tag, blob]) => [[tag, blob] as const, [blob.digest, blob] as const]),
  )
  const byDigest = new Map(blobs.map((blob) => [blob.digest, blob]))

  async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = request.url ?? ''
    requests.push({ path, headers: request.headers })
    if (await answer(request, response, path)) return
    const [, kind, name = ''] = /^\/v2\/.+\/(manifests|blobs)\/([^/]+)$/.exec(path) ?? []
    const blob = kind === 'manifests' ? manifests.get(name) : byDigest.get(name)
    if (!blob) {
      response.writeHead(404).end('{}')
      return
    }
    const start = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1] ?? 0)
    const range =
      start > 0 ? { 'content-range': `bytes ${start}-${blob.content.length - 1}/${blob.content.length}` } : {}
    response.writeHead(start > 0 ? 206 : 200, {
      'content-type': blob.mediaType,
      'content-length': blob.content.length - start,
      ...range,
    })
    response.end(blob.content.subarray(start))
  }

  const server = createServer((request, response) => {
    serve(request, response).catch((error) => response.destroy(error))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    host: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    async close() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

export function partsOf(image: MadeImage): Blob[] {
  return [image.config, ...image.layers]
}

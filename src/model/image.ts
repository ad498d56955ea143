import { type BerthError, invalid } from './errors.ts'

export type ImageReference =
  | { kind: 'registry'; registry: string; repository: string; tag?: string; digest?: string }
  /** An OCI layout on this host. */
  | { kind: 'layout'; directory: string; tag?: string }
  /** A root filesystem or an image archive on this host. */
  | { kind: 'tar'; file: string }

/** The runtime configuration in the image's metadata. */
export interface ImageConfig {
  entrypoint: string[]
  cmd: string[]
  env: Record<string, string>
  user: string
  workingDir: string
  stopSignal?: string
  exposedPorts: string[]
  labels: Record<string, string>
}

export const defaultRegistry = 'docker.io'
const defaultTag = 'latest'

// The grammar of the OCI distribution specification.
const hostName =
  /^(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?$/
const repositoryName = /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:\/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$/
const tagName = /^\w[\w.-]{0,127}$/
const digestText = /^sha256:[0-9a-f]{64}$/
const maxRepositoryLength = 255
const maxReferenceLength = 4096

export function isDigest(text: string): boolean {
  return digestText.test(text)
}

/** `[host/]repository[:tag|@digest]`; with `mayUseHost` also `oci:<directory>[:tag]` and `tar:<file>`. */
export function parseImageReference(text: string, mayUseHost: boolean): ImageReference {
  if (text.length > maxReferenceLength) throw refused(`is longer than ${maxReferenceLength} characters`)
  if (text.startsWith('oci:/') || text.startsWith('tar:/')) {
    if (!mayUseHost) throw refused('names a file of the host, which takes the root token; name an image in a registry')
    return parseHostPath(text)
  }
  return parseRegistryReference(text)
}

/** The canonical text, with registry and tag filled in. */
export function formatImageReference(reference: ImageReference): string {
  if (reference.kind === 'tar') return `tar:${reference.file}`
  const tag = reference.tag === undefined ? '' : `:${reference.tag}`
  if (reference.kind === 'layout') return `oci:${reference.directory}${tag}`
  const digest = reference.digest === undefined ? '' : `@${reference.digest}`
  return `${reference.registry}/${reference.repository}${tag}${digest}`
}

function parseHostPath(text: string): ImageReference {
  const path = text.slice('oci:'.length)
  if (path.includes('\0')) throw refused('has a zero byte in it')
  if (text.startsWith('tar:')) return { kind: 'tar', file: path }
  const colon = path.lastIndexOf(':')
  const tag = path.slice(colon + 1)
  if (colon < 1 || tag.includes('/')) return { kind: 'layout', directory: path }
  if (!tagName.test(tag)) throw refused(`has the tag ${JSON.stringify(tag)}, which no image can have`)
  return { kind: 'layout', directory: path.slice(0, colon), tag }
}

function parseRegistryReference(text: string): ImageReference {
  const [named = '', digest, ...more] = text.split('@')
  if (more.length > 0 || (digest !== undefined && !isDigest(digest)))
    throw refused('has a digest that is not sha256: and 64 hexadecimal digits')
  const { registry, rest } = splitRegistry(named)
  const colon = rest.indexOf(':')
  const path = colon < 0 ? rest : rest.slice(0, colon)
  const tag = colon < 0 ? undefined : rest.slice(colon + 1)
  if (tag !== undefined && !tagName.test(tag)) throw refused(`has a tag that no image can have`)
  const repository = registry === defaultRegistry && !path.includes('/') ? `library/${path}` : path
  if (!repositoryName.test(path) || repository.length > maxRepositoryLength)
    throw refused('is not the name of an image; try nginx, registry.example.com/team/app:v1 or name@sha256:…')
  const version = tag ?? (digest === undefined ? defaultTag : undefined)
  return {
    kind: 'registry',
    registry,
    repository,
    ...(version !== undefined && { tag: version }),
    ...(digest !== undefined && { digest }),
  }
}

/** As in Docker, the first part is a host only if it contains a dot or a colon or is `localhost`. */
function splitRegistry(text: string): { registry: string; rest: string } {
  const slash = text.indexOf('/')
  const first = text.slice(0, Math.max(slash, 0))
  if (slash < 0 || !(/[.:]/.test(first) || first === 'localhost')) return { registry: defaultRegistry, rest: text }
  const port = Number(/:(\d+)$/.exec(first)?.[1] ?? 1)
  if (!hostName.test(first) || port < 1 || port > 65_535) throw refused('names a registry that is not a host name')
  const host = first.toLowerCase()
  return { registry: host === 'index.docker.io' ? defaultRegistry : host, rest: text.slice(slash + 1) }
}

function refused(reason: string): BerthError {
  return invalid(`config.image ${reason}`)
}

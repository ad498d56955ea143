import { type Static, Type } from 'typebox'
import { badRequest, conflict } from '../errors.ts'
import { type Health, HealthBody, readHealth } from './service-health.ts'

/** A service definition with all defaults filled in. */
export interface ServiceDefinition {
  name: string
  cmd: string
  args: string[]
  needs: string[]
  httpPort: number | null
  env: Record<string, string>
  /** The working directory; the home of the sandbox when null. */
  dir: string | null
  health: Health | null
}

/** A stored service. `wanted` is false after a stop, also across restarts of the sandbox. */
export interface Service extends ServiceDefinition {
  wanted: boolean
  /** Counts what starts the service anew: changes of its definition, and restarts. */
  revision: number
  /** The time that the last stop gave it to end; null for the default. */
  stopMs: number | null
  /** Why it could not be changed to what it is to be; null once it could. */
  problem: string | null
}

export const serviceNamePattern = /^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$/

/** What a caller reads when a service cannot start because of it. */
export const diskFullProblem = 'there is no space left on the disk of the sandbox'

/** Its path would collide with that of the signal operation. */
const reservedName = 'signal'

/** Each takes three supervised processes, and the supervisor of a sandbox has 500. */
const maxServices = 100

const word = { pattern: '^[^\\u0000]*$', refusal: 'cmd, args, env and dir cannot hold a zero byte' }
const variablePattern = /^[A-Za-z_][A-Za-z0-9_]*$/
const orNull = <T extends Parameters<typeof Type.Union>[0][number]>(schema: T) =>
  Type.Optional(Type.Union([schema, Type.Null()]))
const port = (description: string) =>
  orNull(Type.Integer({ minimum: 1, maximum: 65_535, description, refusal: 'http_port must be from 1 to 65535' }))

/** Unknown fields are rejected, so that a misspelled one is noticed. */
export const PutService = Type.Object(
  {
    cmd: Type.String({
      minLength: 1,
      ...word,
      refusal: 'cmd must be the name or the path of a program',
      description: 'The program, looked up in PATH unless it contains a slash; not a shell command line.',
    }),
    args: orNull(Type.Array(Type.String(word), { description: 'Its arguments.' })),
    needs: orNull(
      Type.Array(Type.String(), {
        description: 'Services of the same sandbox that must be ready before it starts.',
      }),
    ),
    http_port: port('The URL of the sandbox leads to this port. One service of a sandbox can have one.'),
    httpPort: port('Another spelling of `http_port`.'),
    env: orNull(
      Type.Record(Type.String(), Type.String(word), { description: 'Variables in addition to those of the sandbox.' }),
    ),
    dir: orNull(
      Type.String({
        pattern: '^/[^\\u0000]*$',
        refusal: 'dir must be an absolute path',
        description: 'The working directory; `/home/sprite` when omitted.',
      }),
    ),
    health: orNull(HealthBody),
  },
  {
    title: 'PutService',
    additionalProperties: false,
    examples: [{ cmd: 'python3', args: ['-m', 'http.server', '8080'], http_port: 8080 }],
  },
)
export type PutService = Static<typeof PutService>

export function readDefinition(name: string, body: PutService): ServiceDefinition {
  refuseName(name)
  const odd = Object.keys(body.env ?? {}).find((key) => !variablePattern.test(key))
  if (odd !== undefined) throw badRequest(`env: ${JSON.stringify(odd)} is not a valid variable name`)
  return {
    name,
    cmd: body.cmd,
    args: body.args ?? [],
    needs: [...new Set(body.needs ?? [])],
    httpPort: body.http_port ?? body.httpPort ?? null,
    env: body.env ?? {},
    dir: body.dir ?? null,
    health: body.health ? readHealth(body.health, body.http_port ?? body.httpPort ?? null) : null,
  }
}

function refuseName(name: string): void {
  if (name === reservedName) throw badRequest(`${reservedName} cannot be the name of a service`)
  if (serviceNamePattern.test(name)) return
  throw badRequest(
    'the name of a service has at most 63 letters, digits, dots, dashes and underscores and starts with a letter or digit',
  )
}

/** Checks the definition against the other services of the sandbox. */
export function checkDefinition(definition: ServiceDefinition, present: readonly ServiceDefinition[]): void {
  const others = present.filter((service) => service.name !== definition.name)
  const known = new Map([...others, definition].map((service) => [service.name, service]))
  for (const need of definition.needs) {
    if (need === definition.name) throw badRequest(`service ${definition.name} cannot need itself`)
    if (!known.has(need)) throw badRequest(`needs: there is no service ${need}`)
  }
  const cycle = findCircle(definition, known)
  if (cycle) throw badRequest(`needs: ${cycle.join(' needs ')} is a dependency cycle`)
  if (definition.httpPort !== null && others.some((service) => service.httpPort !== null))
    throw conflict('another service already has an HTTP port configured')
  if (others.length >= maxServices) throw conflict(`a sandbox has at most ${maxServices} services`)
}

function findCircle(
  definition: ServiceDefinition,
  known: ReadonlyMap<string, ServiceDefinition>,
): string[] | undefined {
  const seen = new Set<string>()
  const search = (name: string, path: string[]): string[] | undefined => {
    if (path.length > 0 && name === definition.name) return [...path, name]
    if (seen.has(name)) return undefined
    seen.add(name)
    for (const need of known.get(name)?.needs ?? []) {
      const found = search(need, [...path, name])
      if (found) return found
    }
    return undefined
  }
  return search(definition.name, [])
}

/** The service and its transitive dependencies, each after its own dependencies. */
export function startOrder<S extends Pick<ServiceDefinition, 'name' | 'needs'>>(
  first: string,
  services: readonly S[],
): S[] {
  const known = new Map(services.map((service) => [service.name, service]))
  const ordered = new Set<S>()
  const visit = (name: string) => {
    const service = known.get(name)
    if (!service || ordered.has(service)) return
    for (const need of service.needs) visit(need)
    ordered.add(service)
  }
  visit(first)
  return [...ordered]
}

/** Groups of services that can start in parallel, each after the previous group. */
export function startLevels(services: readonly Pick<ServiceDefinition, 'name' | 'needs'>[]): string[][] {
  const level = new Map<string, number>()
  const all = new Set(services.flatMap((service) => startOrder(service.name, services)))
  for (const { name, needs } of all) level.set(name, Math.max(0, ...needs.map((need) => (level.get(need) ?? 0) + 1)))
  const groups: string[][] = []
  for (const [name, number] of level) groups[number] = [...(groups[number] ?? []), name]
  return groups
}

export function isSameDefinition(one: ServiceDefinition, two: ServiceDefinition): boolean {
  return definitionText(one) === definitionText(two)
}

/** The same text for the same definition. */
export function definitionText({ name, cmd, args, needs, httpPort, env, dir, health }: ServiceDefinition): string {
  return JSON.stringify([name, cmd, args, needs, httpPort, Object.entries(env).sort(), dir, health && sorted(health)])
}

function sorted(value: object): unknown[] {
  return Object.entries(value)
    .sort(([one], [two]) => (one < two ? -1 : 1))
    .map(([key, item]) => [
      key,
      typeof item === 'object' && item !== null && !Array.isArray(item) ? sorted(item) : item,
    ])
}

import { badRequest } from '../errors.ts'
import { parsePathPrefix } from '../path-prefix.ts'
import type { MachineCheck, MachinePort, MachineService, ReplayCacheRule } from './machine-config.ts'
import { normalizeDuration } from './machine-config-stop.ts'

/** A token in the grammar of HTTP, which header and cookie names are. */
const httpToken = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/

/** Clients may send either spelling and read the boolean one. */
const storedAutostop: Record<string, boolean | 'suspend'> = {
  off: false,
  false: false,
  stop: true,
  true: true,
  suspend: 'suspend',
}

export function normalizeService(field: string, service: MachineService): MachineService {
  for (const [index, port] of (service.ports ?? []).entries()) checkPort(`${field}.ports.${index}`, port)
  const { soft_limit: soft, hard_limit: hard } = service.concurrency ?? {}
  if (soft !== undefined && hard !== undefined && hard > 0 && soft > hard) {
    throw badRequest(`${field}.concurrency.soft_limit must not be above hard_limit`)
  }
  return {
    ...service,
    protocol: service.protocol ?? 'tcp',
    ...(service.autostop !== undefined && { autostop: storedAutostop[String(service.autostop)]! }),
    ...(service.checks && {
      checks: service.checks.map((check, i) => normalizeCheck(`${field}.checks.${i}`, check, service.internal_port)),
    }),
  }
}

function checkPort(field: string, { port, start_port: start, end_port: end, http_options }: MachinePort): void {
  for (const [index, rule] of (http_options?.replay_cache ?? []).entries()) {
    checkReplayRule(`${field}.http_options.replay_cache.${index}`, rule)
  }
  const isRange = start !== undefined || end !== undefined
  if ((port === undefined) === !isRange) throw badRequest(`${field} must have port, or start_port and end_port`)
  if (!isRange) return
  if (start === undefined || end === undefined) throw badRequest(`${field} must have both start_port and end_port`)
  if (start > end) throw badRequest(`${field}.start_port must not be above end_port`)
}

function checkReplayRule(field: string, { path_prefix, type, name }: ReplayCacheRule): void {
  if (!parsePathPrefix(path_prefix)) throw badRequest(`${field}.path_prefix must be a path, or a host name and a path`)
  if (!httpToken.test(name)) throw badRequest(`${field}.name must be the name of a ${type}`)
}

/** A check without a port uses that of its service. */
export function normalizeCheck(field: string, check: MachineCheck, servicePort?: number): MachineCheck {
  checkTarget(field, check, servicePort)
  checkRequest(field, check)
  const normalized = { ...check }
  for (const key of ['interval', 'timeout', 'grace_period'] as const) {
    if (check[key] !== undefined) normalized[key] = normalizeDuration(`${field}.${key}`, check[key])
  }
  return normalized
}

function checkTarget(field: string, { type, command, port }: MachineCheck, servicePort: number | undefined): void {
  if (type === undefined) throw badRequest(`${field}.type is required: tcp, http or exec`)
  if (type === 'exec') {
    if (!command?.[0]) throw badRequest(`${field}.command is required for an exec check`)
  } else if ((port ?? servicePort) === undefined) throw badRequest(`${field}.port is required for a ${type} check`)
}

/** Rejects whatever would end the request line or a header early. */
function checkRequest(field: string, { path, method, headers = [] }: MachineCheck): void {
  if (path !== undefined && (!path.startsWith('/') || /[\0\r\n ]/.test(path))) {
    throw badRequest(`${field}.path must start with a slash and contain no spaces`)
  }
  if (method !== undefined && !/^[a-zA-Z]{1,20}$/.test(method)) {
    throw badRequest(`${field}.method must be an HTTP method such as GET`)
  }
  for (const { name, values } of headers) {
    if (!httpToken.test(name) || values.some((value) => /[\0\r\n]/.test(value))) {
      throw badRequest(`${field}.headers has an invalid header: ${JSON.stringify(name)}`)
    }
  }
}

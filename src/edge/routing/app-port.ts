import type { MachinePort } from '../../model/app/machine-config.ts'
import { parseTlsRules, type TlsRules } from '../tls/rules.ts'
import { parseSessionRules, type SessionRule } from './session-rule.ts'
import type { Target } from './target.ts'

/** A port of an app as clients see it, with the options that its owner configured. */
export interface AppPort {
  port: number
  http: boolean
  tls: boolean
  pgTls: boolean
  /** The version of the PROXY protocol that the program expects. */
  proxyProtocol: 1 | 2 | undefined
  forceHttps: boolean
  tlsRules: TlsRules
  response: ResponseRules | undefined
  /** The program speaks HTTP/2. */
  http2: boolean
  compresses: boolean
  /** Sessions whose replays are cached. */
  sessions: SessionRule[] | undefined
  /** The timeout for idle connections; undefined means the default. */
  idleTimeoutMs: number | undefined
  /** The timeout for the head of a request to arrive; undefined means the default. */
  headTimeoutMs: number | undefined
  targets: Target[]
}

/** Changes to the header fields of responses. */
export interface ResponseRules {
  pristine: boolean
  /** Values by field name in lowercase; a field without values is removed. */
  fields: Map<string, string[]>
}

export function parsePort(number: number, port: MachinePort): AppPort {
  const handlers = new Set<string>(port.handlers)
  const isHttp = handlers.has('http') || handlers.has('edge_http')
  const version = port.proxy_proto_options?.version
  const options = port.http_options
  return {
    port: number,
    http: isHttp,
    tls: handlers.has('tls'),
    pgTls: handlers.has('pg_tls'),
    proxyProtocol: handlers.has('proxy_proto') ? (version === 'v2' ? 2 : 1) : undefined,
    forceHttps: port.force_https === true,
    tlsRules: parseTlsRules(port.tls_options, isHttp),
    response: parseResponseRules(options?.response),
    http2: options?.h2_backend === true,
    compresses: options?.compress === true,
    sessions: parseSessionRules(options?.replay_cache),
    idleTimeoutMs: parseTimeout(options?.idle_timeout),
    headTimeoutMs: parseTimeout(options?.headers_read_timeout),
    targets: [],
  }
}

/** Ignores numbers that are not positive: machines created before timeouts were validated may have them. */
function parseTimeout(seconds: number | undefined): number | undefined {
  return seconds !== undefined && seconds > 0 ? seconds * 1000 : undefined
}

type ResponseOptions = NonNullable<NonNullable<MachinePort['http_options']>['response']>

const fieldName = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/
const fieldValue = /^[\t\x20-\x7e\x80-\xff]*$/
// The edge decides how messages are framed, so owners cannot set these.
const framing = new Set(['connection', 'content-length', 'transfer-encoding', 'upgrade', 'keep-alive', 'trailer', 'te'])

function parseResponseRules(options: ResponseOptions | undefined): ResponseRules | undefined {
  if (!options) return undefined
  const fields = new Map<string, string[]>()
  for (const [name, value] of Object.entries(options.headers ?? {})) {
    const lower = name.toLowerCase()
    if (!fieldName.test(name) || framing.has(lower)) continue
    const values = value === false || value === null ? [] : [value].flat().map(String)
    if (values.every((text) => fieldValue.test(text))) fields.set(lower, values)
  }
  return { pristine: options.pristine === true, fields }
}

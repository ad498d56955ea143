// A port of an app as clients see it, and what its owner says about the requests that come there.
import type { MachinePort } from '../../model/app/machine-config.ts'
import { type TlsRules, tlsRulesOf } from '../tls/handshake.ts'
import type { Target } from './app.ts'
import { type SessionRule, sessionRulesOf } from './replay-session.ts'

export interface AppPort {
  port: number
  http: boolean
  tls: boolean
  pgTls: boolean
  /** The version of the line that tells the program who the client is; undefined: none. */
  proxyProtocol: 1 | 2 | undefined
  forceHttps: boolean
  tlsRules: TlsRules
  response: ResponseRules | undefined
  /** The program speaks HTTP/2. */
  http2: boolean
  /** Answers are made smaller for clients that understand that. */
  compresses: boolean
  /** For which replays are repeated, client by client; undefined: none. */
  sessions: SessionRule[] | undefined
  /** How long nothing may move over a connection, and how long the head of a request may take; undefined: as usual. */
  idleMillis: number | undefined
  headMillis: number | undefined
  targets: Target[]
}

/** How answers are changed on their way out. */
export interface ResponseRules {
  pristine: boolean
  /** By name in lowercase; without values the field is left out. */
  fields: Map<string, string[]>
}

export function portOf(number: number, port: MachinePort): AppPort {
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
    tlsRules: tlsRulesOf(port.tls_options, isHttp),
    response: responseRulesOf(options?.response),
    http2: options?.h2_backend === true,
    compresses: options?.compress === true,
    sessions: sessionRulesOf(options?.replay_cache),
    idleMillis: millisOf(options?.idle_timeout),
    headMillis: millisOf(options?.headers_read_timeout),
    targets: [],
  }
}

/** Machines that were made before these were checked may have any number. */
function millisOf(seconds: number | undefined): number | undefined {
  return seconds !== undefined && seconds > 0 ? seconds * 1000 : undefined
}

type ResponseOptions = NonNullable<NonNullable<MachinePort['http_options']>['response']>

const fieldName = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/
const fieldValue = /^[\t\x20-\x7e\x80-\xff]*$/
// These say where an answer ends, which is the edge's to say.
const framing = new Set(['connection', 'content-length', 'transfer-encoding', 'upgrade', 'keep-alive', 'trailer', 'te'])

function responseRulesOf(options: ResponseOptions | undefined): ResponseRules | undefined {
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

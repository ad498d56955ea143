import { ApiError, CommandError, UsageError } from './errors.ts'

export interface Session {
  /** Has no trailing slash. */
  url: string
  token: string
}

const timeoutSeconds = 30

/** Sends a JSON request. An answer without a body counts as `{}`. */
export async function request<T>(
  session: Session,
  method: string,
  path: string,
  body?: object,
  headers: Record<string, string> = {},
): Promise<T> {
  const { status, text } = await exchange(session, method, path, body, headers)
  if (status >= 200 && status < 300) return parseAnswer(session, status, text) as T
  throw apiError(session, status, text)
}

export function apiError(session: Session, status: number, text: string): ApiError {
  const answer = parseAnswer(session, status, text)
  return new ApiError(status, nameOptions(messageOf(answer)) ?? `the platform answered with status ${status}`, answer)
}

/** API fields that error messages mention, and the command-line options that set them. */
const optionsByField = {
  'force=true': '--force',
  disk_size_gb: '--disk',
  postgis_enabled: '--postgis',
  'extensions:': '--extension:',
  retention_days: '--retention',
  maintenance_window: '--maintenance-window',
}

function nameOptions(sentence: string | undefined): string | undefined {
  return Object.entries(optionsByField).reduce((text, [field, option]) => text?.replaceAll(field, option), sentence)
}

/** Returns undefined when the platform answers 404. */
export async function requestIfPresent<T>(session: Session, path: string): Promise<T | undefined> {
  try {
    return await request<T>(session, 'GET', path)
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return undefined
    throw error
  }
}

/** Encodes one segment of a path. Rejects dot segments: clients resolve them even when they are encoded. */
export function encodeSegment(name: string): string {
  if (/^\.{0,2}$/.test(name)) throw new UsageError(`"${name}" is not a name`)
  return encodeURIComponent(name)
}

async function exchange(
  session: Session,
  method: string,
  path: string,
  body: object | undefined,
  headers: Record<string, string>,
) {
  try {
    const response = await fetch(session.url + path, {
      method,
      headers: {
        authorization: `Bearer ${session.token}`,
        ...(body ? { 'content-type': 'application/json' } : {}),
        ...headers,
      },
      ...(body ? { body: JSON.stringify(body) } : {}),
      signal: AbortSignal.timeout(timeoutSeconds * 1000),
    })
    return { status: response.status, text: await response.text() }
  } catch (error) {
    throw networkError(session, error as Error)
  }
}

/** Wraps an error below HTTP, such as a refused connection, with a message about the platform. */
export function networkError({ url }: Session, error: Error): CommandError {
  return new CommandError(describeNetworkError(url, error), { cause: error })
}

function describeNetworkError(url: string, error: Error): string {
  if (error.name === 'TimeoutError') return `no answer from ${url} within ${timeoutSeconds} seconds`
  const { code = '', message = '' } = (error.cause ?? error) as { code?: string; message?: string }
  if (/CERT|SIGNED|SIGNATURE/.test(code)) {
    return `the certificate of ${url} is not trusted (${message}); set NODE_EXTRA_CA_CERTS to the file with its CA certificate`
  }
  if (message === 'bad port') return `HTTP clients block the port of ${url}; choose another port`
  return `no platform answers at ${url}; start one with "berth up"`
}

function parseAnswer({ url }: Session, status: number, text: string): unknown {
  if (text === '') return {}
  try {
    return JSON.parse(text)
  } catch {
    throw new CommandError(
      `${url} answered with status ${status}, but not with JSON; check that the URL is that of a platform`,
    )
  }
}

/** The platform API puts the message into `error`; the sandbox API puts a code there and the text into `message`. */
function messageOf(answer: unknown): string | undefined {
  const { error, message } = (answer ?? {}) as { error?: unknown; message?: unknown }
  return [message, error].find((text): text is string => typeof text === 'string')
}

import type { Session } from '../cli/client.ts'
import { CommandError, UsageError } from '../cli/errors.ts'
import { readTextIfPresent } from '../drivers/host/file.ts'
import { isLoopback } from '../model/network.ts'
import type { Config } from './config.ts'

interface Addresses {
  api: string
  sandbox: string
}

/** The port of the sandbox API on a host of which only the URL of the platform API is known. */
const defaultSandboxPort = '4281'

/** Determines the URL and the token for the platform API. */
export function openSession(config: Config, givenUrl: string | undefined): Session {
  const url = readNamedUrl(config, givenUrl) ?? getLocalAddresses(config.home).api
  return { url, token: findToken(config, url) }
}

/** Determines the URL and the token for the sandbox API; the option --url selects both APIs. */
export function openSandboxSession(config: Config, givenUrl: string | undefined): Session {
  const url = findSandboxUrl(config, givenUrl)
  return { url, token: findToken(config, url) }
}

function findSandboxUrl(config: Config, givenUrl: string | undefined): string {
  if (config.sandboxUrl && givenUrl === undefined) return readUrl('BERTH_SANDBOX_URL', config.sandboxUrl)
  const named = readNamedUrl(config, givenUrl)
  if (named === undefined) return getLocalAddresses(config.home).sandbox
  const local = findLocalAddresses(config.home)
  return named === local?.api || named === local?.sandbox ? local.sandbox : withPort(named, defaultSandboxPort)
}

function withPort(address: string, port: string): string {
  const url = new URL(address)
  url.port = port
  return url.origin
}

function readNamedUrl(config: Config, givenUrl: string | undefined): string | undefined {
  if (givenUrl !== undefined) return readUrl('--url', givenUrl)
  return config.url === undefined ? undefined : readUrl('BERTH_URL', config.url)
}

function getLocalAddresses(home: string): Addresses {
  const addresses = findLocalAddresses(home, 'set BERTH_URL')
  if (addresses) return addresses
  throw new CommandError(
    `no platform runs in ${home}; start one with "berth up", or select another with --url or BERTH_URL`,
  )
}

/** `hint` is added to the error when the file is not readable; without it such a file counts as missing. */
function findLocalAddresses(home: string, hint?: string): Addresses | undefined {
  const text = readForUser(`${home}/run/addresses.json`, hint)
  if (text === undefined) return undefined
  const { api, sandbox } = JSON.parse(text) as Addresses
  return { api: api.replace(/\/+$/, ''), sandbox: sandbox.replace(/\/+$/, '') }
}

function readUrl(source: string, text: string): string {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url && /^https?:$/.test(url.protocol) && !url.username && !url.password && !url.search && !url.hash) {
    return (url.origin + url.pathname).replace(/\/+$/, '')
  }
  throw new UsageError(`${source} must be an address such as http://127.0.0.1:4280, not "${text}"`)
}

function findToken(config: Config, url: string): string {
  return checkToken(config.token ?? readLocalToken(config.home, url))
}

/** The root token of the local platform is never sent to another host. */
function readLocalToken(home: string, url: string): string {
  const file = `${home}/token`
  if (!isLoopback(new URL(url).hostname)) {
    const local = findLocalAddresses(home, 'set BERTH_TOKEN')
    if (url !== local?.api && url !== local?.sandbox) {
      throw new UsageError(
        `no token for ${url}: set BERTH_TOKEN (the one in ${file} is for the platform of this machine)`,
      )
    }
  }
  const token = readForUser(file, 'set BERTH_TOKEN')?.trim()
  if (token) return token
  throw new UsageError(`no token: set BERTH_TOKEN, or start a platform with "berth up", which writes one to ${file}`)
}

function checkToken(token: string): string {
  if (/^[\x21-\x7e]+$/.test(token)) return token
  throw new UsageError('the token contains invalid characters; check that it was copied whole and without other text')
}

function readForUser(file: string, hint: string | undefined): string | undefined {
  try {
    return readTextIfPresent(file)
  } catch (error) {
    if (hint === undefined) return undefined
    const { code } = error as NodeJS.ErrnoException
    if (code !== 'EACCES' && code !== 'EPERM') throw new UsageError(`cannot read ${file}`, { cause: error })
    throw new UsageError(`${file} belongs to another user; ${hint}`)
  }
}

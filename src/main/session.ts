import type { Session } from '../cli/client.ts'
import { Failure, Misuse } from '../cli/failure.ts'
import { readTextIfPresent } from '../drivers/file.ts'
import type { Config } from './config.ts'

/** Where the command line finds the platform, and what it says who it is with. */
export function openSession(config: Config, givenUrl: string | undefined): Session {
  const named = givenUrl ?? config.url
  const url = named === undefined ? readLocalUrl(config.home) : readUrl(givenUrl ? '--url' : 'BERTH_URL', named)
  if (url === undefined) {
    throw new Failure(
      `no platform runs in ${config.home}; start one with "berth up", or name another with --url or BERTH_URL`,
    )
  }
  return { url, token: checkToken(config.token ?? readLocalToken(config.home, url)) }
}

function readLocalUrl(home: string): string | undefined {
  const file = `${home}/run/addresses.json`
  const text = readForUser(file, 'set BERTH_URL')
  return text === undefined ? undefined : (JSON.parse(text) as { api: string }).api.replace(/\/+$/, '')
}

function readUrl(source: string, text: string): string {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url && /^https?:$/.test(url.protocol) && !url.username && !url.password && !url.search && !url.hash) {
    return (url.origin + url.pathname).replace(/\/+$/, '')
  }
  throw new Misuse(`${source} must be an address such as http://127.0.0.1:4280, not "${text}"`)
}

/** The root token of this machine's platform is not for another machine, whoever named that one. */
function readLocalToken(home: string, url: string): string {
  const file = `${home}/token`
  if (!isLoopback(new URL(url).hostname) && url !== readLocalUrl(home)) {
    throw new Misuse(`no token for ${url}: set BERTH_TOKEN (the one in ${file} is for the platform of this machine)`)
  }
  const token = readForUser(file, 'set BERTH_TOKEN')?.trim()
  if (token) return token
  throw new Misuse(`no token: set BERTH_TOKEN, or start a platform with "berth up", which writes one to ${file}`)
}

function checkToken(token: string): string {
  if (/^[\x21-\x7e]+$/.test(token)) return token
  throw new Misuse('the token holds characters that no token has; was it copied whole, and alone?')
}

function isLoopback(hostname: string): boolean {
  return hostname === 'localhost' || hostname === '[::1]' || /^127\.\d+\.\d+\.\d+$/.test(hostname)
}

function readForUser(file: string, instead: string): string | undefined {
  try {
    return readTextIfPresent(file)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code !== 'EACCES' && code !== 'EPERM') throw new Misuse(`cannot read ${file}`, { cause: error })
    throw new Misuse(`${file} belongs to another user; ${instead}`)
  }
}

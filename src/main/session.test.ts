import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { readConfig } from './config.ts'
import { openSandboxSession, openSession } from './session.ts'

let home: string

beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), 'berth-session-'))
})

afterEach(() => rmSync(home, { recursive: true, force: true }))

function open(environment: Record<string, string> = {}, url?: string) {
  return openSession(readConfig({ BERTH_HOME: home, ...environment }), url)
}

function openSandboxes(environment: Record<string, string> = {}, url?: string) {
  return openSandboxSession(readConfig({ BERTH_HOME: home, ...environment }), url).url
}

function startPlatform(): void {
  mkdirSync(join(home, 'run'))
  writeFileSync(
    join(home, 'run/addresses.json'),
    '{"api": "http://10.0.0.1:4280", "sandbox": "http://10.0.0.1:4281"}\n',
  )
  writeFileSync(join(home, 'token'), 'berth_local\n')
}

test('finds the URL and the token in the home', () => {
  startPlatform()
  expect(open()).toEqual({ url: 'http://10.0.0.1:4280', token: 'berth_local' })
})

test('prefers the option over the environment and the environment over the home', () => {
  startPlatform()
  const environment = { BERTH_URL: 'https://b.example/', BERTH_TOKEN: 'berth_given' }
  expect(open(environment)).toEqual({ url: 'https://b.example', token: 'berth_given' })
  expect(open(environment, 'https://c.example/base/')).toEqual({
    url: 'https://c.example/base',
    token: 'berth_given',
  })
})

test('names the command that starts a platform when none runs in the home', () => {
  expect(() => open()).toThrow(`no platform runs in ${home}; start one with "berth up"`)
})

test('names the sources of a token when there is none', () => {
  expect(() => open({ BERTH_URL: 'http://127.0.0.1:1' })).toThrow(
    `no token: set BERTH_TOKEN, or start a platform with "berth up", which writes one to ${home}/token`,
  )
})

test('uses the token of the home for local URLs only', () => {
  startPlatform()
  expect(open({}, 'http://localhost:9999').token).toBe('berth_local')
  expect(open({}, 'http://10.0.0.1:4280').token).toBe('berth_local')
  expect(() => open({}, 'https://b.example')).toThrow('no token for https://b.example: set BERTH_TOKEN')
})

test.each(['berth', 'ftp://x', 'http://user:secret@x', 'http://x/?q=1'])('rejects the URL %s', (url) => {
  expect(() => open({ BERTH_TOKEN: 'berth_x' }, url)).toThrow('--url must be an address such as')
})

test('rejects a token with invalid characters', () => {
  expect(() => open({ BERTH_URL: 'http://x', BERTH_TOKEN: 'berth_a\nberth_b' })).toThrow('copied whole')
})

describe('the URL of the sandbox API', () => {
  const given = { BERTH_TOKEN: 'berth_given' }

  test('is the one of the home, also when the URL of its platform is given', () => {
    startPlatform()
    expect(openSandboxes()).toBe('http://10.0.0.1:4281')
    expect(openSandboxes({}, 'http://10.0.0.1:4280/')).toBe('http://10.0.0.1:4281')
    expect(openSandboxes({ BERTH_URL: 'http://10.0.0.1:4281' })).toBe('http://10.0.0.1:4281')
  })

  test('is at the default port of the host of another platform', () => {
    expect(openSandboxes({ ...given, BERTH_URL: 'https://b.example/' })).toBe('https://b.example:4281')
    expect(openSandboxes(given, 'http://b.example:4280')).toBe('http://b.example:4281')
  })

  test('is the one that is set, unless --url is given', () => {
    const environment = { ...given, BERTH_URL: 'https://b.example', BERTH_SANDBOX_URL: 'https://s.example/base/' }
    expect(openSandboxes(environment)).toBe('https://s.example/base')
    expect(openSandboxes(environment, 'https://c.example')).toBe('https://c.example:4281')
    expect(() => openSandboxes({ ...given, BERTH_SANDBOX_URL: 'nowhere' })).toThrow(
      'BERTH_SANDBOX_URL must be an address',
    )
  })

  test('does not get the local token when it is on another host', () => {
    startPlatform()
    expect(() => openSandboxes({ BERTH_SANDBOX_URL: 'https://s.example' })).toThrow('no token for https://s.example')
  })
})

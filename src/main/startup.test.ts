import { describe, expect, test } from 'vitest'
import { readConfig } from './config.ts'
import { announcement } from './startup.ts'

const addresses = { api: 'http://127.0.0.1:4280', sandbox: 'http://127.0.0.1:4281', edge: 'http://127.0.0.1' }

function announce(changes: { isDetached?: boolean; hasSystemd?: boolean; token?: string }): string {
  const { token, ...how } = changes
  const config = readConfig({ BERTH_HOME: '/srv/berth', ...(token ? { BERTH_TOKEN: token } : {}) })
  return announcement({ config, addresses, headline: 'Ready.', isDetached: false, hasSystemd: false, ...how })
}

describe('the announcement of a started platform', () => {
  test('names the addresses, the token and the log', () => {
    const text = announce({})
    expect(text).toMatch(/^Ready\.\n/)
    for (const part of [addresses.api, addresses.sandbox, 'http://<app>.berth.localhost:80/', '/srv/berth/token'])
      expect(text).toContain(part)
    expect(text).toContain('/srv/berth/log/control-plane.log')
  })

  test('does not show a token of the configuration', () => {
    expect(announce({ token: 'berth_secret' })).toMatch(/root token +BERTH_TOKEN\n/)
    expect(announce({ token: 'berth_secret' })).not.toContain('berth_secret')
  })

  test('says how to keep it running under systemd and elsewhere', () => {
    expect(announce({ hasSystemd: true })).toMatch(/at every boot: \.\/berth install && systemctl .*daemon-reload && /)
    expect(announce({ hasSystemd: false })).toContain('has no systemd')
    expect(announce({})).toContain('./berth up --detach')
    expect(announce({ isDetached: true })).not.toContain('--detach')
  })
})

import { describe, expect, test } from 'vitest'
import type { Machine, MachineConfig } from './machine-find.ts'
import type { ReleaseDetails } from './release.ts'
import { chooseRelease, restoreConfig } from './release-command.ts'

function release(version: number, status = 'complete'): ReleaseDetails {
  const rest = { deploymentStrategy: 'ROLLING', user: null, createdAt: '' }
  return { id: `r${version}`, version, status, imageRef: `web:${version}`, ...rest }
}

const history = [release(5), release(4, 'failed'), release(3), release(2)]

describe('a rollback', () => {
  test('goes to the last complete release before the newest, or to the one that is named', () => {
    expect(chooseRelease(history, 'web', undefined).version).toBe(3)
    expect(chooseRelease(history, 'web', 2).version).toBe(2)
  })

  test.each([
    [history, 4, 'release 4 of app web is failed; choose a complete one'],
    [history, 9, 'app web has no release 9; "berth releases list -a web" lists them'],
    [[release(1)], undefined, 'app web has no complete release before its newest'],
    [[], undefined, 'app web has no complete release before its newest'],
  ])('is refused when there is nothing to go back to', (releases, version, message) => {
    expect(() => chooseRelease(releases, 'web', version)).toThrow(message)
  })

  test('restores the configuration of a machine, but not its volumes', () => {
    const metadata = { fly_process_group: 'app', fly_release_version: '5' }
    const mounts = [{ volume: 'vol_1', path: '/data' }]
    const machine = { config: { image: 'web:5', env: { A: '5' }, mounts, metadata } } as Pick<
      Machine,
      'config'
    > as Machine
    const earlier: MachineConfig = {
      image: 'web:3',
      env: { A: '3' },
      metadata: { ...metadata, fly_release_version: '3', berth_bluegreen: 'new', own: 'x' },
    }
    const next = { id: 'r6', version: 6 }
    const now = {
      fly_platform_version: 'v2',
      fly_process_group: 'app',
      fly_release_id: 'r6',
      fly_release_version: '6',
    }
    expect(restoreConfig(machine, earlier, release(3), next)).toEqual({
      image: 'web:3',
      env: { A: '3' },
      mounts,
      metadata: { ...now, own: 'x' },
    })
    expect(restoreConfig(machine, undefined, release(3), next)).toEqual({
      image: 'web:3',
      env: { A: '5' },
      mounts,
      metadata: now,
    })
  })
})

// Restores on a filesystem with reflinks, where the time depends on the number of files and not on their size.
import { execFile, spawnSync } from 'node:child_process'
import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { until } from './child.ts'
import { type ClusterHost, isVerified, openClusterHost, removeCluster, waitUntilReady } from './cluster.ts'
import { group, type Measurement } from './framework.ts'
import { makeSource, megabytes, requestRestore, type Source, timeRestore } from './restore.ts'
import type { Scope } from './scope.ts'
import { inTurn } from './turn.ts'

export interface ReflinkFixture extends ClusterHost {
  big: Source
  small: Source
}

// Scales of pgbench; each unit is about 15 MB.
const bigScale = 130
const smallScale = 11
const rounds = 5

const run = promisify(execFile)
/** The image file is sparse. */
const imageGigabytes = 32

export const reflink = [
  group<ReflinkFixture>({
    setUp,
    benchmarks: [
      {
        name: 'restore-reflink',
        title: 'time to restore a scrubbed backup of about 2 GB by reflink until ready',
        target: { atMost: 1.3 },
        run: compareRestores,
      },
    ],
  }),
]

async function setUp(scope: Scope): Promise<ReflinkFixture> {
  return makeSources(await openClusterHost(scope, await mountXfs(scope)))
}

/** Compares the restore of a large backup with that of a small one. */
export async function compareRestores(host: ReflinkFixture): Promise<Measurement> {
  const { big, small } = host
  const ratio = await inTurn(
    rounds,
    () => timeRestore(host, big),
    () => timeRestore(host, small),
  )
  const verified = await timeVerification(host, big)
  const times = `${ratio.measured.toFixed(2)} and ${ratio.reference.toFixed(2)} s for ${megabytes(big)} and ${megabytes(small)} MB`
  const note = `${times}; ${ratio.note}; verified ${verified.toFixed(1)} s after ready`
  return { value: ratio.median, unit: '×', reference: 'the same with about 200 MB', note, disturbed: ratio.disturbed }
}

export async function makeSources(host: ClusterHost): Promise<ReflinkFixture> {
  const small = await makeSource(host, smallScale)
  const big = await makeSource(host, bigScale)
  for (const source of [small, big]) await scrub(host, source)
  return { ...host, small, big }
}

/** Returns a mount point with space for several copies. */
async function mountXfs(scope: Scope): Promise<string> {
  const directory = mkdtempSync(join(tmpdir(), 'berth-xfs-'))
  scope.defer(() => rmSync(directory, { recursive: true, force: true }))
  const [image, mountPoint] = [join(directory, 'image'), join(directory, 'm')]
  mkdirSync(mountPoint)
  await run('truncate', ['-s', `${imageGigabytes}G`, image])
  await run('mkfs.xfs', ['-q', '-m', 'reflink=1', image])
  await run('mount', ['-o', 'loop', image, mountPoint])
  // Unmounts lazily, because a background process may still be deleting files.
  scope.defer(() => void spawnSync('umount', ['-l', mountPoint]))
  for (const path of [directory, mountPoint]) chmodSync(path, 0o711)
  return mountPoint
}

/** Makes a scrub of the backup due, and waits until it has verified all checksums. */
async function scrub({ state }: ClusterHost, { cluster, backup }: Source): Promise<void> {
  const place = [cluster.id, backup.id]
  await state.query(
    `update backup set verified_at = now() - interval '1 year' where cluster_id = $1 and label = $2`,
    place,
  )
  const isScrubbed = async () => {
    const text = 'select scrubbed_at is not null as done from backup where cluster_id = $1 and label = $2'
    return (await state.query(text, place)).rows[0].done as boolean
  }
  await until(isScrubbed, `a scrub of ${cluster.id}`, 120, 100)
}

/** Returns the seconds from ready until all checksums are verified. */
async function timeVerification(host: ClusterHost, source: Source): Promise<number> {
  const id = await requestRestore(host, source)
  await waitUntilReady(host, id)
  const started = performance.now()
  await until(() => isVerified(host, id), `the verification of ${id}`, 120, 50)
  const seconds = (performance.now() - started) / 1000
  await removeCluster(host, id)
  return seconds
}

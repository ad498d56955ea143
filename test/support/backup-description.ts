import type { BackupDescription } from '../../src/drivers/repository/driver.ts'

/** The description of a backup in the repository format. */
export function describedBackup(
  change: Partial<BackupDescription> & Pick<BackupDescription, 'clusterId' | 'label'>,
): BackupDescription {
  return {
    clusterName: 'shop',
    orgSlug: 'acme',
    epoch: 1,
    pgMajor: '17',
    timeline: 1,
    startLsn: '0/3000028',
    stopLsn: '0/3000120',
    startedAt: '2026-11-15T10:02:03.000001Z',
    stoppedAt: '2026-11-15T10:02:09.123456Z',
    sizeBytes: 5,
    settings: { plan: 'basic', disk_size_gb: 10 },
    ...change,
  }
}

// The descriptions in the repository. They may come from another version or be damaged, so nothing in them is trusted.
import { maintenancePattern } from '../../model/postgres/maintenance.ts'
import { parseLsn } from '../../model/postgres/wal.ts'
import { parseTime } from '../../model/time.ts'
import type { BackupDescription, ClusterDescription, DescribedBase, DescribedEpoch } from './driver.ts'

const maxTextLength = 16 * 1024 * 1024

/** Throws an error that names the first field that is not valid. */
export function parseBackup(text: string): BackupDescription {
  const found = parseObject(text)
  const fields = { ...stringsOf(found, 'clusterId', 'clusterName', 'orgSlug', 'label', 'pgMajor') }
  const times = { startedAt: timeOf(found, 'startedAt'), stoppedAt: timeOf(found, 'stoppedAt') }
  const positions = { startLsn: lsnOf(found, 'startLsn'), stopLsn: lsnOf(found, 'stopLsn') }
  const numbers = {
    epoch: countOf(found, 'epoch'),
    timeline: countOf(found, 'timeline'),
    sizeBytes: countOf(found, 'sizeBytes'),
  }
  const { manifestChecksum, settings } = found
  if (manifestChecksum !== undefined && typeof manifestChecksum !== 'string') throw notValid('manifestChecksum')
  if (!isObject(settings)) throw notValid('settings')
  return { ...fields, ...positions, ...times, ...numbers, settings, ...(manifestChecksum && { manifestChecksum }) }
}

/** Fields that an older version did not write are undefined. */
export function parseCluster(text: string): ClusterDescription {
  const found = parseObject(text)
  const { drillQuery = null, retentionDays = null, maintenanceWindow = null, pinned = [], epochs, settings } = found
  if (drillQuery !== null && typeof drillQuery !== 'string') throw notValid('drillQuery')
  if (!Array.isArray(pinned) || !pinned.every((label) => typeof label === 'string')) throw notValid('pinned')
  const days = retentionDays === null ? null : countOf(found, 'retentionDays')
  const choices = { drillQuery, retentionDays: days, maintenanceWindow: windowOf(maintenanceWindow), pinned }
  if (epochs === undefined) return choices
  if (!Array.isArray(epochs)) throw notValid('epochs')
  if (!isObject(settings)) throw notValid('settings')
  return {
    ...choices,
    ...stringsOf(found, 'clusterId', 'clusterName', 'orgSlug', 'pgMajor'),
    createdAt: timeOf(found, 'createdAt'),
    settings,
    epochs: epochs.map(parseEpoch),
    ...(isObject(found.origin) && { origin: found.origin }),
  }
}

function windowOf(value: unknown): string | null {
  if (value === null || (typeof value === 'string' && new RegExp(maintenancePattern).test(value))) return value
  throw notValid('maintenanceWindow')
}

function parseEpoch(value: unknown): DescribedEpoch {
  if (!isObject(value)) throw notValid('epochs')
  return {
    epoch: countOf(value, 'epoch'),
    timeline: countOf(value, 'timeline'),
    startLsn: lsnOf(value, 'startLsn'),
    startedAt: timeOf(value, 'startedAt'),
    base: value.base === null || value.base === undefined ? null : parseBase(value.base),
    ...(value.isClockChanged === true && { isClockChanged: true }),
  }
}

function parseBase(value: unknown): DescribedBase {
  if (!isObject(value) || !isObject(value.backup) || !Array.isArray(value.pieces)) throw notValid('base')
  const { backup, pieces } = value
  return {
    backup: {
      ...stringsOf(backup, 'clusterId', 'label'),
      startLsn: lsnOf(backup, 'startLsn'),
      stopLsn: lsnOf(backup, 'stopLsn'),
    },
    pieces: pieces.map((piece) => {
      if (!isObject(piece)) throw notValid('pieces')
      const { clusterId } = stringsOf(piece, 'clusterId')
      return {
        clusterId,
        epoch: countOf(piece, 'epoch'),
        timeline: countOf(piece, 'timeline'),
        end: lsnOf(piece, 'end'),
      }
    }),
    at: timeOf(value, 'at'),
    ...(value.lsn !== undefined && { lsn: lsnOf(value, 'lsn') }),
  }
}

type Fields = Record<string, unknown>

function parseObject(text: string): Fields {
  if (text.length > maxTextLength) throw new Error('it is too large')
  const found: unknown = JSON.parse(text)
  if (!isObject(found)) throw new Error('it is not an object')
  return found
}

function isObject(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function stringsOf<K extends string>(fields: Fields, ...names: K[]): Record<K, string> {
  for (const name of names) if (typeof fields[name] !== 'string') throw notValid(name)
  return Object.fromEntries(names.map((name) => [name, fields[name]])) as Record<K, string>
}

function lsnOf(fields: Fields, name: string): string {
  const value = fields[name]
  if (typeof value !== 'string') throw notValid(name)
  parseLsn(value)
  return value
}

/** PostgreSQL accepts years that RFC 3339 does not have, but no backup is that old or that new. */
function timeOf(fields: Fields, name: string): string {
  const value = fields[name]
  if (typeof value !== 'string' || parseTime(value) === undefined) throw notValid(name)
  return value
}

/** The columns of the state database are integers of 32 bits, except for sizes. */
function countOf(fields: Fields, name: string): number {
  const value = fields[name]
  const limit = name === 'sizeBytes' ? Number.MAX_SAFE_INTEGER : 2 ** 31 - 1
  if (!Number.isSafeInteger(value) || Number(value) < 0 || Number(value) > limit) throw notValid(name)
  return Number(value)
}

function notValid(name: string): Error {
  return new Error(`its field ${name} is not valid`)
}

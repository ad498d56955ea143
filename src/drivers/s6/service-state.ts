import { type Stats, statSync } from 'node:fs'
import type { Micros } from '../../model/time.ts'
import { isSupervised } from './control.ts'
import type { ServiceState } from './driver.ts'
import { findEnd, isMarkedDown, type SupervisorPaths, serviceDirectory } from './service-directory.ts'
import { readStatus } from './status.ts'

export async function inspectService(paths: SupervisorPaths, name: string): Promise<ServiceState> {
  const directory = serviceDirectory(paths, name)
  const entry = statSync(directory, { throwIfNoEntry: false })
  if (entry === undefined) return { is: 'absent' }
  const end = findEnd(paths, name)
  if (end) return { is: 'down', wanted: false, ended: true, ...end, since: modifiedAt(entry) }
  const status = isSupervised(directory) ? await readStatus(directory) : undefined
  return status ?? { is: 'down', wanted: !isMarkedDown(paths, name), since: modifiedAt(entry) }
}

function modifiedAt(entry: Stats): Micros {
  return BigInt(Math.trunc(entry.mtimeMs)) * 1000n
}

// The file `definition` of a service names the definition and the revision that its other files are of. They only change
// while the service is down, so it also says what runs.
import { createHash } from 'node:crypto'
import { definitionText, type Service } from '../../../model/sandbox/service.ts'
import { readUntrustedFile } from '../../host/untrusted-file.ts'

const hashLength = 64

/** Identifies a definition, and the restarts that were requested since it was stored. */
export function revisionOf(service: Service): string {
  return createHash('sha256')
    .update(`${service.revision} ${definitionText(service)}`)
    .digest('hex')
}

/** True if the files are of another definition, or were made before the last restart was requested. */
export function isOutdated(run: string, service: Service): boolean {
  const found = readUntrustedFile(run, `${service.name}/definition`, hashLength)?.toString()
  // The files of an earlier version of the platform have no such mark. They are those of the revision 0.
  return found === undefined ? service.revision > 0 : found !== revisionOf(service)
}

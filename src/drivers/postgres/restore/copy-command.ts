import { segmentBytes } from '../../../model/postgres/wal.ts'
import { scriptCommand } from '../script.ts'

/** Names that copy.sh uses in the directory of the cluster. */
export const temporaryPrefix = '.copy~'
export const verifierLog = 'copy.words'
export const unverifiedMark = 'copy.unverified'

/** The exit code with which copy.sh reports a damaged backup. */
export const damagedExitCode = 3

export interface CopyOptions {
  /** The directory of the cluster, which must exist. The copy appears in it as `data`. */
  directory: string
  backup: string
  label: string
  plan: string
  settings: string
  uid?: number | undefined
  verifier: string
  /** Allows a reflink copy before the checksums of the backup are verified. */
  trusted: boolean
}

export function copyCommand(options: CopyOptions): string[] {
  const { directory, backup, label, plan, settings, uid, verifier } = options
  return scriptCommand(
    'postgres/restore/copy.sh',
    directory,
    backup,
    label,
    plan,
    settings,
    String(uid ?? ''),
    verifier,
    options.trusted ? '--skip-checksums' : '',
    String(segmentBytes),
  )
}

/** A job that fails with this reason, so that callers find it where they look for the result of a copy. */
export function refusalCommand(reason: string): string[] {
  return ['/bin/sh', '-c', 'echo "$1"; exit 1', 'copy', reason.replaceAll(/\s+/g, ' ')]
}

/** Replaces a file atomically with standard input. It must run as the user of the cluster, who could have put a link there. */
export function replaceCommand(file: string): [string, string[]] {
  const script = 'umask 077; cat > "$1.next" && sync "$1.next" && mv "$1.next" "$1"'
  return ['/bin/sh', ['-c', script, 'replace', file]]
}

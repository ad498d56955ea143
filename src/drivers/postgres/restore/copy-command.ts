import { segmentBytes } from '../../../model/postgres/wal.ts'
import { scriptCommand } from '../script.ts'

/** Names that copy.sh uses in its directory. */
export const temporaryPrefix = '.copy~'
export const verifierLog = 'words'
export const unverifiedMark = 'unverified'

/** The exit codes with which copy.sh reports a damaged backup and a damaged WAL file. */
export const damagedExitCode = 3
export const damagedWalExitCode = 4

/** The line in which copy.sh names the WAL file. */
export const damagedWalPattern = /^wal (missing|damaged) (\S+)$/

export interface CopyOptions {
  /** The directory to work in, which must exist and belong to the user of the cluster. The copy appears in it as `data`. */
  directory: string
  /** Whether the copy exists and only the backup is to be verified. */
  isCopied: boolean
  backup: string
  label: string
  plan: string
  settings: string
  verifier: string
  /** Allows a reflink copy before the checksums of the backup are verified. */
  trusted: boolean
}

export function copyCommand(options: CopyOptions): string[] {
  const { directory, isCopied, backup, label, plan, settings, verifier } = options
  return scriptCommand(
    'postgres/restore/copy.sh',
    isCopied ? 'verify' : 'copy',
    directory,
    backup,
    label,
    plan,
    settings,
    verifier,
    options.trusted ? '--skip-checksums' : '',
    String(segmentBytes),
  )
}

/** A job that fails with this reason, so that callers find it where they look for the result of a copy. */
export function refusalCommand(exitCode: number, ...lines: string[]): string[] {
  const script = 'code=$1; shift; printf "%s\\n" "$@"; exit "$code"'
  return ['/bin/sh', '-c', script, 'copy', String(exitCode), ...lines.map((line) => line.replaceAll(/\s+/g, ' '))]
}

import { segmentBytes } from '../../../model/postgres/wal.ts'
import { scriptCommand } from '../script.ts'

/** Names that copy.sh uses in its directory. */
export const temporaryPrefix = '.copy~'
export const verifierLog = 'words'
export const unverifiedMark = 'unverified'

/** The exit code with which copy.sh reports a damaged backup. */
export const damagedExitCode = 3

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
export function refusalCommand(reason: string, exitCode = 1): string[] {
  return ['/bin/sh', '-c', 'echo "$1"; exit "$2"', 'copy', reason.replaceAll(/\s+/g, ' '), String(exitCode)]
}

/** Replaces a file atomically with standard input. It must run as the user of the cluster, who could have put a link there. */
export function replaceCommand(file: string): [string, string[]] {
  const script = 'umask 077; rm -rf "$1.next"; cat > "$1.next" && sync "$1.next" && mv -T "$1.next" "$1"'
  return ['/bin/sh', ['-c', script, 'replace', file]]
}

// The copy of a backup into a data directory that can recover, as one shell script: it runs as a job, which outlives
// the control plane. It works under a fresh name and ends with a rename onto a name that must not exist.
import { segmentBytes } from '../model/wal.ts'

export const freshMark = '.copy~'

export interface CopyOrder {
  /** Of the cluster; must exist. The copy appears in it as `data`. */
  directory: string
  backup: string
  label: string
  /** The file with the list of what to replay. */
  plan: string
  settings: string
  uid?: number | undefined
  verifier: string
}

// The job of a cluster runs once at a time, so that copies under other fresh names are those of dead ones.
const script = `
umask 077
directory=$1 backup=$2 label=$3 plan=$4 settings=$5 owner=$6 verifier=$7
data=$directory/data
[ ! -e "$data" ] || exit 0
rm -rf "$directory/${freshMark}"*
fresh=$(mktemp -d "$directory/${freshMark}XXXXXXXXXX") || exit 1

# The receiver may have finished a segment since the list was made, which changes its name.
take() {
  if [ -e "$2" ]; then head -c "$1" -- "$2"; else head -c "$1" -- "\${2%.partial}"; fi
}

stage() {
  read -r total
  while read -r bytes name path; do
    case $name in
      *.history) take "$bytes" "$path" ;;
      # Zeros in full: the file is used again, and a hole in it would ask for room that the disk may not have then.
      *) take "$bytes" "$path"; head -c $((${segmentBytes} - bytes)) /dev/zero ;;
    esac > "pg_wal/$name"
  done
}

fill() {
  set -e
  cp -aT --reflink=auto -- "$backup" "$fresh"
  cd "$fresh"
  chmod 700 .
  rm -rf backup_manifest postmaster.pid postmaster.opts standby.signal pg_replslot pg_wal
  mkdir -p pg_wal/archive_status pg_replslot pg_commit_ts pg_dynshmem pg_logical/mappings pg_logical/snapshots \\
    pg_multixact/members pg_multixact/offsets pg_notify pg_serial pg_snapshots pg_stat pg_stat_tmp pg_subtrans \\
    pg_tblspc pg_twophase pg_xact
  stage < "$plan"
  printf %s "$settings" > postgresql.auto.conf
  : > recovery.signal
  [ -z "$owner" ] || chown -R "$owner:$owner" .
  sync -f .
}

fill & filling=$!
# Beside the copy, so that the disk is read once for both.
words=$("$verifier" -n -e -q "$backup" 2>&1)
verified=$?
wait $filling
filled=$?
if [ $filled = 0 ] && [ $verified = 0 ]; then
  # Who was first has made the same.
  mv -T "$fresh" "$data" || [ -e "$data" ] || filled=1
  sync "$directory"
fi
rm -rf "$fresh"
[ $filled = 0 ] || exit $filled
[ $verified = 0 ] && exit
case $words in
  'pg_verifybackup: error: '*) echo "backup $label is damaged: $(echo "\${words#*error: }" | head -n 1)" ;;
  *) echo "backup $label could not be verified: exit code $verified $words" ;;
esac
exit 1
`

export function copyCommand({ directory, backup, label, plan, settings, uid, verifier }: CopyOrder): string[] {
  const values = [directory, backup, label, plan, settings, String(uid ?? ''), verifier]
  return ['/bin/sh', '-c', script, 'copy', ...values]
}

/** A job that says why there is no copy, so that this is found where the end of a copy is found. */
export function refusalCommand(reason: string): string[] {
  return ['/bin/sh', '-c', 'echo "$1"; exit 1', 'copy', reason.replaceAll(/\s+/g, ' ')]
}

// As the user of the cluster, who owns the directory and could lead somebody mightier astray in it.
const replaceScript = 'umask 077; cat > "$1.next" && sync "$1.next" && mv "$1.next" "$1"'

/** Writes its input to the file, which changes as a whole. */
export function replaceCommand(file: string): [string, string[]] {
  return ['/bin/sh', ['-c', replaceScript, 'replace', file]]
}

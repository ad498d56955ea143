// The copy of a backup into a data directory that can recover, as one shell script: it runs as a job, which outlives
// the control plane. It works under a fresh name and ends with a rename onto a name that must not exist.
import { segmentBytes } from '../../../model/postgres/wal.ts'

export const freshMark = '.copy~'
/** What the verifier says, with a line a second about how far it is. */
export const wordsFile = 'copy.words'
/** Lies beside a copy that shares the blocks of a backup whose checksums have yet to be read. */
export const unverifiedMark = 'copy.unverified'

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
  /** Its checksums may be read after the copy is there, if the copy is the same blocks. */
  trusted: boolean
}

/** With which the script says that the backup is damaged; any other failure says nothing about it. */
export const damagedCode = 3

// The job of a cluster runs once at a time, so that copies under other fresh names are those of dead ones.
const script = `
umask 077
directory=$1 backup=$2 label=$3 plan=$4 settings=$5 owner=$6 verifier=$7 trusted=$8
data=$directory/data unverified=$directory/${unverifiedMark} said=$directory/${wordsFile}

verify() {
  "$verifier" -n -e -P "$@" "$backup" > "$said" 2>&1
  code=$?
  words=$(grep -v '^ *[0-9]*/[0-9]* kB (' "$said")
  rm -f "$said"
  [ $code != 0 ] || return 0
  case $words in
    'pg_verifybackup: error: '*)
      complaint="backup $label is damaged: $(echo "\${words#*error: }" | head -n 1)"
      return ${damagedCode} ;;
  esac
  complaint="backup $label could not be verified: exit code $code $words"
  return 1
}

complain() {
  echo "$complaint"
  exit "$1"
}

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
  cp -aT --reflink=\${reflink:-auto} -- "$backup" "$fresh"
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

make() {
  rm -rf "$unverified" "$directory/${freshMark}"*
  fresh=$(mktemp -d "$directory/${freshMark}XXXXXXXXXX") || exit 1
  if cp --reflink=always -- "$backup/PG_VERSION" "$fresh" 2> /dev/null; then
    reflink=\${trusted:+always}
  else
    trusted=
    require_room
  fi
  fill & filling=$!
  # Beside the copy, so that the disk is read once for both.
  verify $trusted
  verified=$?
  wait $filling
  filled=$?
  if [ $filled = 0 ] && [ $verified = 0 ]; then
    [ -z "$trusted" ] || { : > "$unverified" && sync "$unverified" "$directory"; } || exit 1
    # Who was first has made the same.
    mv -T "$fresh" "$data" || [ -e "$data" ] || filled=1
    sync "$directory"
  fi
  rm -rf "$fresh"
  [ $filled = 0 ] || exit $filled
  [ $verified = 0 ] || complain $verified
  return 0
}

# A copy that fills the disk takes the other clusters with it.
require_room() {
  read -r total < "$plan"
  free=$(df --output=avail -B 1 -- "$directory" | tail -n 1)
  [ "$total" -gt "$free" ] || return 0
  rm -rf "$fresh"
  echo "not enough disk space: $((free >> 20)) MB are free, $((total >> 20)) MB are needed"
  exit 1
}

[ -e "$data" ] || { make; exit; }
[ -e "$unverified" ] || exit 0
# The backup rather than the copy, in which the server writes by now: what is wrong with their blocks is so in both.
renice -n 19 $$ > /dev/null
verify || complain $?
rm "$unverified"
sync "$directory"
`

export function copyCommand(order: CopyOrder): string[] {
  const { directory, backup, label, plan, settings, uid, verifier } = order
  // The word by which the verifier looks at names and sizes only.
  const trusted = order.trusted ? '--skip-checksums' : ''
  const values = [directory, backup, label, plan, settings, String(uid ?? ''), verifier, trusted]
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

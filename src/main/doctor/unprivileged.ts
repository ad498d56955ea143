// What an ordinary user needs for sandboxes and machines with a network and several users. Berth itself can give them
// these only as root so far, and says so.
import { userInfo } from 'node:os'
import { inspectCommand } from '../../drivers/host/facts.ts'
import { readLinesIfPossible } from '../../drivers/host/file.ts'
import { commandExists, isRoot } from '../../drivers/host/process.ts'
import { type Check, type Finding, installCommand, ok, warning } from './finding.ts'

/** None for root, who needs none of this. */
export const unprivilegedChecks: Record<string, Check> = isRoot()
  ? {}
  : { 'user-mode network': checkUserNetwork, 'subordinate ids': checkSubordinateIds }

const unused = 'which this version of Berth does not use yet'
const asRootNow = 'run Berth as root; to be prepared for a later version, '

async function checkUserNetwork(): Promise<Finding> {
  const found = await inspectCommand('pasta')
  if (found) return ok(`pasta at ${found.path}, ${unused}`)
  return warning(
    'pasta is not installed',
    'Sandboxes and machines of an ordinary user have no network. This version of Berth needs root for that, with and without pasta.',
    asRootNow + installCommand('passt'),
  )
}

/** As many as a box has. */
const neededIds = 65_536

function checkSubordinateIds(): Finding {
  const { username, uid } = userInfo()
  const hasPrograms = ['newuidmap', 'newgidmap'].every(commandExists)
  const lackingFiles = ['/etc/subuid', '/etc/subgid'].filter(
    (file) => countIds(readLinesIfPossible(file), username, uid) < neededIds,
  )
  const lacking = [...(hasPrograms ? [] : ['newuidmap']), ...lackingFiles.map((file) => `a range in ${file}`)]
  if (lacking.length === 0) return ok(`${neededIds} or more for ${username}, ${unused}`)
  const commands = [
    ...(hasPrograms ? [] : [installCommand('uidmap')]),
    ...(lackingFiles.length === 0 ? [] : [`sudo usermod ${idOptions(lackingFiles)} ${username}`]),
  ]
  return warning(
    `without ${lacking.join(', ')}`,
    'Sandboxes of an ordinary user have a single user. This version of Berth needs root for more, with and without them.',
    asRootNow + commands.join(' && '),
  )
}

function idOptions(files: string[]): string {
  const first = firstFreeId(files.flatMap(readLinesIfPossible))
  const range = `${first}-${first + neededIds - 1}`
  return files.map((file) => (file === '/etc/subuid' ? `--add-subuids ${range}` : `--add-subgids ${range}`)).join(' ')
}

/** The first id after all assigned ranges. Debian assigns them from 100000 on. */
export function firstFreeId(lines: string[]): number {
  const ends = lines.map((line) => line.split(':').slice(1).map(Number)).map(([start = 0, count = 0]) => start + count)
  return Math.max(100_000, ...ends.filter(Number.isInteger))
}

/** The longest range of lines such as `name:100000:65536`; the name may be a number. */
export function countIds(lines: string[], name: string, uid: number): number {
  const counts = lines
    .map((line) => line.split(':'))
    .filter(([owner]) => owner === name || owner === String(uid))
    .map(([, , count]) => Number(count) || 0)
  return Math.max(0, ...counts)
}

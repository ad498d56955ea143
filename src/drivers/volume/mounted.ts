// Finds where a disk image is mounted. Boxes mount it in their own mount namespaces, so the host's mount table does not
// list it.
import { readdirSync, readFileSync, readlinkSync, type StatsFs, statfsSync, statSync } from 'node:fs'
import { withUntrustedDirectory } from '../host/untrusted-file.ts'

/** Returns the loop device of the image as major:minor. */
export function findLoop(image: string): string | undefined {
  for (const name of readdirSync('/sys/block')) {
    // The file does not exist while the loop device is unused.
    if (readQuietly(`/sys/block/${name}/loop/backing_file`) === image) return readQuietly(`/sys/block/${name}/dev`)
  }
  return undefined
}

/** Returns the statistics of the image's filesystem if it is mounted in any namespace. */
export function statMounted(image: string): StatsFs | undefined {
  const device = findLoop(image)
  if (device === undefined) return undefined
  const seen = new Set<string>()
  for (const pid of readdirSync('/proc')) {
    const namespace = /^\d+$/.test(pid) ? namespaceOf(pid) : undefined
    if (namespace === undefined || seen.has(namespace)) continue
    seen.add(namespace)
    const stats = statInNamespace(pid, device)
    if (stats) return stats
  }
  return undefined
}

function statInNamespace(pid: string, device: string): StatsFs | undefined {
  const lines = (readQuietly(`/proc/${pid}/mountinfo`) ?? '').split('\n').map((line) => line.split(' '))
  const mountPoint = lines.find((words) => words[2] === device)?.[4]
  if (mountPoint === undefined) return undefined
  const path = mountPoint
    .slice(1)
    .replaceAll(/\\(\d{3})/g, (_, digits) => String.fromCharCode(Number.parseInt(digits, 8)))
  try {
    return withUntrustedDirectory(`/proc/${pid}/root`, path, (directory) =>
      statSync(directory).dev === deviceNumber(device) ? statfsSync(directory) : undefined,
    )
  } catch {
    return undefined // mounted at the root of the namespace, or the process has ended
  }
}

function namespaceOf(pid: string): string | undefined {
  try {
    return readlinkSync(`/proc/${pid}/ns/mnt`)
  } catch {
    return undefined
  }
}

function deviceNumber(text: string): number {
  const [major = 0, minor = 0] = text.split(':').map(Number)
  return (minor & 0xff) + ((major & 0xfff) << 8) + (minor - (minor & 0xff)) * 4096
}

function readQuietly(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8').trimEnd()
  } catch {
    return undefined
  }
}

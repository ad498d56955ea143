// Who has a disk mounted. Boxes mount it in namespaces of their own, so that the list of mounts of the host does not tell.
import { readdirSync, readFileSync, readlinkSync, type StatsFs, statfsSync, statSync } from 'node:fs'

/** The loop device that shows the file as a disk, as major:minor. */
export function findLoop(image: string): string | undefined {
  for (const name of readdirSync('/sys/block')) {
    // There is no such file when the device shows nothing, or was let go in this moment.
    if (readQuietly(`/sys/block/${name}/loop/backing_file`) === image) return readQuietly(`/sys/block/${name}/dev`)
  }
  return undefined
}

/** What the filesystem on the disk says of itself, where it is mounted anywhere. */
export function statMounted(image: string): StatsFs | undefined {
  const device = findLoop(image)
  if (device === undefined) return undefined
  const seen = new Set<string>()
  for (const pid of readdirSync('/proc')) {
    const namespace = /^\d+$/.test(pid) ? namespaceOf(pid) : undefined
    if (namespace === undefined || seen.has(namespace)) continue
    seen.add(namespace)
    const stats = statWithin(pid, device)
    if (stats) return stats
  }
  return undefined
}

function statWithin(pid: string, device: string): StatsFs | undefined {
  const lines = (readQuietly(`/proc/${pid}/mountinfo`) ?? '').split('\n').map((line) => line.split(' '))
  const place = lines.find((words) => words[2] === device)?.[4]
  if (place === undefined) return undefined
  const path = `/proc/${pid}/root${place.replaceAll(/\\(\d{3})/g, (_, digits) => String.fromCharCode(Number.parseInt(digits, 8)))}`
  try {
    // Whoever is inside may have put a link in the way.
    return statSync(path).dev === deviceNumber(device) ? statfsSync(path) : undefined
  } catch {
    return undefined
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

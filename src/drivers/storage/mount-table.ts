import { readFileSync } from 'node:fs'

export interface Mount {
  mountPoint: string
  fileSystem: string
  source: string
  /** `<major>:<minor>` of the device. */
  device: string
  options: string[]
}

/** Lists the mounts of this process, the later ones on top of the earlier ones. */
export function listMounts(text = readFileSync('/proc/self/mountinfo', 'utf8')): Mount[] {
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => {
      const words = line.split(' ')
      const rest = words.slice(words.indexOf('-') + 1)
      return {
        mountPoint: decode(words[4]!),
        device: words[2]!,
        fileSystem: rest[0]!,
        source: decode(rest[1]!),
        options: [...words[5]!.split(','), ...rest[2]!.split(',')],
      }
    })
}

/** The topmost mount at exactly this path. */
export function findMountAt(path: string): Mount | undefined {
  return listMounts().findLast(({ mountPoint }) => mountPoint === path)
}

/** The mount that a path lies in. */
export function findMountOf(path: string): Mount | undefined {
  const contains = (mountPoint: string) =>
    path === mountPoint || path.startsWith(mountPoint === '/' ? '/' : `${mountPoint}/`)
  const candidates = listMounts().filter(({ mountPoint }) => contains(mountPoint))
  const longest = Math.max(...candidates.map(({ mountPoint }) => mountPoint.length))
  return candidates.findLast(({ mountPoint }) => mountPoint.length === longest)
}

/** The kernel writes space, tab, newline and backslash as octal numbers. */
function decode(text: string): string {
  return text.replaceAll(/\\([0-7]{3})/g, (_, octal) => String.fromCharCode(Number.parseInt(octal, 8)))
}

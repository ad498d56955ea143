import { type ImageConfig, isDigest } from '../../model/image.ts'
import { ImageError } from './driver.ts'
import { isObject } from './json.ts'

/** Reads the digests of the layers' tars from an image configuration. */
export function readDiffIds({ rootfs }: Record<string, unknown>): string[] {
  const ids = isObject(rootfs) ? rootfs.diff_ids : undefined
  if (!Array.isArray(ids)) throw new ImageError('not_supported', 'The image cannot be run: it has no root filesystem')
  if (ids.every((id) => typeof id === 'string' && isDigest(id))) return ids as string[]
  throw new ImageError('damaged', 'The configuration of the image has a layer without a sha256 digest')
}

export function readConfig(content: Record<string, unknown>): ImageConfig {
  const config = isObject(content.config) ? content.config : {}
  const signal = readText(config.StopSignal)
  return {
    entrypoint: readWords(config.Entrypoint),
    cmd: readWords(config.Cmd),
    env: readEnvironment(readWords(config.Env)),
    user: readText(config.User),
    workingDir: readText(config.WorkingDir),
    ...(signal !== '' && { stopSignal: signal }),
    exposedPorts: isObject(config.ExposedPorts) ? Object.keys(config.ExposedPorts) : [],
    labels: isObject(config.Labels)
      ? Object.fromEntries(
          Object.entries(config.Labels).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
        )
      : {},
  }
}

function readText(value: unknown): string {
  return typeof value === 'string' && !value.includes('\0') ? value : ''
}

function readWords(value: unknown): string[] {
  if (!Array.isArray(value)) return []
  if (value.every((word) => typeof word === 'string' && !word.includes('\0'))) return value as string[]
  throw new ImageError('damaged', 'The configuration of the image has an argument or variable with a zero byte')
}

function readEnvironment(entries: string[]): Record<string, string> {
  const pairs = entries.map((entry) => [entry.split('=', 1)[0]!, entry.slice(entry.indexOf('=') + 1 || entry.length)])
  return Object.fromEntries(pairs.filter(([name]) => name !== ''))
}

import { type Descriptor, readDescriptor } from './blob.ts'
import { ImageError } from './driver.ts'
import { isObject } from './json.ts'
import type { ImageLimits } from './limits.ts'

const architecture = { x64: 'amd64', arm64: 'arm64' }[process.arch as string] ?? process.arch

/** Chooses the entry of an index for this host, preferring one without a variant. */
export function choosePlatform(entries: unknown[], limits: ImageLimits): Descriptor {
  if (entries.length > limits.maxLayers * 8)
    throw new ImageError('too_large', 'The index of the image has too many entries')
  const matching = entries.filter(isObject).filter(({ platform }) => isThisPlatform(platform))
  const chosen = matching.find(({ platform }) => isObject(platform) && !platform.variant) ?? matching[0]
  if (chosen) return readDescriptor(chosen)
  throw new ImageError(
    'not_supported',
    `The image does not exist for linux/${architecture}: build it for this platform as well`,
  )
}

function isThisPlatform(platform: unknown): boolean {
  // An index with a single entry may omit the platform.
  if (!isObject(platform)) return true
  if (platform.os !== 'linux' || platform.architecture !== architecture) return false
  return ['', 'v8', 'v1', undefined].includes(platform.variant as string | undefined)
}

/** Throws when the configuration of an image names another platform. */
export function requirePlatform({ os, architecture: found }: Record<string, unknown>): void {
  const isMatch = (os === undefined || os === '' || os === 'linux') && (!found || found === architecture)
  if (isMatch) return
  const theirs = JSON.stringify(`${os}/${found}`.slice(0, 100))
  throw new ImageError(
    'not_supported',
    `The image is for ${theirs} and this host is linux/${architecture}: build it for this platform`,
  )
}

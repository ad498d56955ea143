import { ImageError } from './driver.ts'

/** Parses a part of an image that has to be a JSON object; `part` names it in error messages. */
export function parseObject(bytes: Buffer, part: string): Record<string, unknown> {
  let value: unknown
  try {
    value = JSON.parse(bytes.toString())
  } catch (error) {
    throw new ImageError('damaged', `The ${part} of the image is not JSON`, error)
  }
  if (!isObject(value)) throw new ImageError('damaged', `The ${part} of the image is not an object`)
  return value
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

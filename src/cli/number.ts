import { InvalidArgumentError } from 'commander'

/** Which numbers are allowed is for the platform to say. */
export function parseWholeNumber(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('Write a whole number.')
  return Number(text)
}

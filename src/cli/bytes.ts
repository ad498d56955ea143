const units = ['bytes', 'kB', 'MB', 'GB', 'TB']

/** Formats a size in steps of 1024: `512 bytes`, `38.2 MB`, `10 GB`. */
export function formatBytes(bytes: number): string {
  let value = bytes
  let step = 0
  // 1023.95 would be rounded to 1024.0 of a unit, which is 1 of the next.
  while (value >= 1023.95 && step < units.length - 1) {
    value /= 1024
    step++
  }
  return `${step === 0 ? value : Number(value.toFixed(1))} ${units[step]}`
}

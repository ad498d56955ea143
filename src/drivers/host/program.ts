/** The absolute path of a Perl or shell program of a driver, named relative to `src/drivers`. */
export function driverProgram(name: string): string {
  return new URL(`../${name}`, import.meta.url).pathname
}

/** Returns the absolute path of a Perl or shell program, given relative to `src/drivers`. */
export function driverProgram(name: string): string {
  return new URL(`../${name}`, import.meta.url).pathname
}

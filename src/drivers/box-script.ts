/** The programs in Perl that lie beside this file. */
export function boxScript(name: string): string {
  return new URL(`./${name}`, import.meta.url).pathname
}

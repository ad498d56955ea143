import { readFileSync } from 'node:fs'
import { driverProgram } from '../../host/program.ts'

const texts = new Map<string, string>()

/** The text of a shell script beside this file, without its interpreter line. A box cannot see the file itself. */
export function scriptText(name: string): string {
  const known = texts.get(name)
  if (known !== undefined) return known
  const text = readFileSync(driverProgram(`box/service/${name}`), 'utf8').replace(/^#!.*\n/, '')
  texts.set(name, text)
  return text
}

import { existsSync, readFileSync } from 'node:fs'
import type { Command } from 'commander'
import { segment } from '../client.ts'
import type { ProgressCli } from '../command.ts'
import { Misuse } from '../failure.ts'

/** Access to the process that commands about machines need. */
export interface MachineCli extends ProgressCli {
  /** Reads all of standard input. */
  readInput(): Promise<string>
  setExitCode(code: number): void
}

export interface OfApp {
  app?: string
}

/** For every command about something that an app has. */
export function takesApp(command: Command): Command {
  return command.option('-a, --app <name>', 'the app; by default the one that berth.toml in this directory names')
}

export function appName({ app }: OfApp): string {
  const name = app ?? nameInFile()
  if (name === undefined) throw new Misuse('name the app with --app, or run this where its berth.toml is')
  return name
}

export function appPath(options: OfApp): string {
  return `/v1/apps/${segment(appName(options))}`
}

/** The first line of the kind `app = "name"`, which stands before all tables. */
function nameInFile(): string | undefined {
  const file = ['berth.toml', 'fly.toml'].find((name) => existsSync(name))
  const text = file ? readFileSync(file, 'utf8') : ''
  const head = text.split(/^\s*\[/m)[0]!
  return /^\s*app\s*=\s*["']([^"']+)["']/m.exec(head)?.[1]
}

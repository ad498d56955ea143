import { existsSync, readFileSync } from 'node:fs'
import type { Command } from 'commander'
import { encodeSegment } from '../client.ts'
import type { ProgressCli } from '../command.ts'
import { Misuse } from '../failure.ts'

/** Access to the process that commands about machines need. */
export interface MachineCli extends ProgressCli {
  /** Reads all of standard input. */
  readInput(): Promise<string>
  setExitCode(code: number): void
}

export interface AppOptions {
  app?: string
}

/** For every command about something that an app has. */
export function withAppOption(command: Command): Command {
  return command.option('-a, --app <name>', 'the app; by default the one that berth.toml in this directory names')
}

export function appName({ app }: AppOptions): string {
  const name = app ?? readAppNameFromFile()
  if (name === undefined) throw new Misuse('name the app with --app, or run this where its berth.toml is')
  return name
}

export function appPath(options: AppOptions): string {
  return `/v1/apps/${encodeSegment(appName(options))}`
}

/** The first line of the kind `app = "name"`, which stands before all tables. */
function readAppNameFromFile(): string | undefined {
  const file = ['berth.toml', 'fly.toml'].find((name) => existsSync(name))
  const text = file ? readFileSync(file, 'utf8') : ''
  const head = text.split(/^\s*\[/m)[0]!
  return /^\s*app\s*=\s*["']([^"']+)["']/m.exec(head)?.[1]
}

import { existsSync, readFileSync } from 'node:fs'
import type { Command } from 'commander'
import { encodeSegment } from '../client.ts'
import type { ProgressCli } from '../command.ts'
import { UsageError } from '../errors.ts'

/** Access to the process that commands about machines need. */
export interface MachineCli extends ProgressCli {
  /** Reads all of standard input. */
  readInput(): Promise<string>
  setExitCode(code: number): void
}

/** Help text of commands that take an image. */
export const imageForms = `An image is named as in a registry (nginx, ghcr.io/acme/web:1.2, registry.example.com/web@sha256:…). With the root
token it may also be on the host of the platform: oci:/dir or oci:/dir:tag (an OCI image layout), or tar:/file (saved
with "docker save", an OCI archive, or a tar of a root file system).`

export interface AppOptions {
  app?: string
}

export function withAppOption(command: Command): Command {
  return command.option('-a, --app <name>', 'the app; defaults to the one named in berth.toml in this directory')
}

export function appName({ app }: AppOptions): string {
  const name = app ?? readAppNameFromFile()
  if (name === undefined)
    throw new UsageError('name the app with --app, or run this in the directory of its berth.toml')
  return name
}

export function appPath(options: AppOptions): string {
  return `/v1/apps/${encodeSegment(appName(options))}`
}

/** Reads `app = "name"` above the first table. Commands other than deploy need nothing else of the file. */
function readAppNameFromFile(): string | undefined {
  const file = ['berth.toml', 'fly.toml'].find((name) => existsSync(name))
  const text = file ? readFileSync(file, 'utf8') : ''
  const head = text.split(/^\s*\[/m)[0]!
  return /^\s*app\s*=\s*["']([^"']+)["']/m.exec(head)?.[1]
}

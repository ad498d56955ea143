// Builds an image for sandboxes on this machine. It needs no running platform.
import { execFile, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { rename, rm, stat } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { promisify } from 'node:util'
import { type Command, InvalidArgumentError } from 'commander'
import { formatBytes } from '../bytes.ts'
import { addExamples, type Cli } from '../command.ts'
import { CommandError, UsageError } from '../errors.ts'
import { printResult, sanitize } from '../output.ts'

interface BaseImageOptions {
  output: string
  suite?: string
  include?: string[]
  force?: true
}

/** What quickstarts expect, beside what every Debian system has. */
const packages = [
  'ca-certificates',
  'curl',
  'git',
  'less',
  'nodejs',
  'npm',
  'openssh-client',
  'procps',
  'python-is-python3',
  'python3-pip',
  'python3-venv',
  'sudo',
]

export function addBaseImageCommand(sandbox: Command, cli: Cli): void {
  const build = sandbox
    .command('base-image')
    .description('build an image of Debian with python, node, git and sudo, from the Debian mirrors of this machine')
    .requiredOption('--output <file>', 'the tar archive to write')
    .option('--suite <name>', 'the release of Debian, such as bookworm; defaults to that of this machine', parseSuite)
    .option('--include <package>', 'another package to install; may be given several times', collectPackage)
    .option('--force', 'replace an existing file')
    .action((options: BaseImageOptions) => buildBaseImage(cli, options))
  addExamples(
    build,
    'berth sandbox base-image --output /srv/base.tar',
    'berth sandbox base-image --output /srv/go.tar --suite trixie --include golang-go --include make',
    'berth sandbox create demo --image tar:/srv/base.tar',
  )
}

function parseSuite(text: string): string {
  if (!/^[a-z]{2,30}$/.test(text)) throw new InvalidArgumentError('Write the name of a release, such as bookworm.')
  return text
}

function collectPackage(text: string, collected: string[] = []): string[] {
  if (!/^[a-z0-9][a-z0-9+.-]+$/.test(text)) throw new InvalidArgumentError('Write the name of a Debian package.')
  return [...collected, text]
}

async function buildBaseImage(cli: Cli, options: BaseImageOptions): Promise<void> {
  const file = resolve(options.output)
  if (!existsSync(dirname(file))) throw new UsageError(`the directory ${dirname(file)} does not exist`)
  if (existsSync(file) && !options.force) throw new UsageError(`${file} exists; --force replaces it`)
  const { suite, lines } = chooseSources(parseTargets(await listTargets()), options.suite)
  // The archive appears whole or not at all.
  const partial = `${file}.partial`
  try {
    await runBuilder([
      '--variant=minbase',
      '--format=tar',
      `--include=${[...packages, ...(options.include ?? [])].join(',')}`,
      `--customize-hook=${removeHostFiles}`,
      suite,
      partial,
      ...lines,
    ])
    await rename(partial, file)
  } finally {
    await rm(partial, { force: true })
  }
  const answer: BaseImage = { file, suite, bytes: (await stat(file)).size, image: `tar:${file}` }
  printResult(cli.terminal(), answer, () => describe(answer))
}

/** The image shall not carry the name and the name servers of the machine that built it. */
const removeHostFiles = 'rm -f "$1/etc/hostname" "$1/etc/resolv.conf"'

interface BaseImage {
  file: string
  suite: string
  bytes: number
  /** The value for `create --image`. */
  image: string
}

function describe({ file, suite, bytes, image }: BaseImage): string {
  return [
    `Built ${sanitize(file)} from Debian ${suite} (${formatBytes(bytes)}).`,
    `Use it:  berth sandbox create demo --image ${sanitize(image)}`,
  ].join('\n')
}

export interface Target {
  label: string
  release: string
  uri: string
}

const targetFields = ['ORIGIN', 'LABEL', 'RELEASE', 'COMPONENT', 'REPO_URI'].map((name) => `$(${name})`)

/** Asks apt instead of reading its files, which have two formats and include others. */
async function listTargets(): Promise<string> {
  const format = targetFields.join('|')
  try {
    const { stdout } = await promisify(execFile)('apt-get', [
      'indextargets',
      '--format',
      format,
      'Created-By: Packages',
    ])
    return stdout
  } catch (cause) {
    throw new CommandError('cannot list the package sources of this machine with apt-get', { cause })
  }
}

/** Keeps what comes from Debian itself. Other sources of this machine do not belong in the image. */
export function parseTargets(text: string): Target[] {
  return text
    .split('\n')
    .map((line) => line.split('|'))
    .filter(([origin, , , component]) => origin === 'Debian' && component === 'main')
    .map(([, label = '', release = '', , uri = '']) => ({ label, release, uri }))
}

/**
 * Returns the lines of a `sources.list`: the release, its updates and its security updates, each if this machine uses those
 * of its own release. The rolling release has neither.
 */
export function chooseSources(targets: Target[], wanted: string | undefined): { suite: string; lines: string[] } {
  const own = targets.find(({ label, release }) => label === 'Debian' && /^[a-z]+$/.test(release))?.release
  if (own === undefined) {
    throw new CommandError('apt on this machine knows no Debian mirror; add one to its sources and run: apt-get update')
  }
  const suite = wanted ?? own
  const suffixes = rollingReleases.includes(suite) ? [''] : ['', '-updates', '-security']
  const chosen = targets.filter(({ release }) => suffixes.some((suffix) => release === own + suffix))
  const lines = chosen.map(({ release, uri }) => `deb ${uri} ${suite}${release.slice(own.length)} main`)
  return { suite, lines: [...new Set(lines)] }
}

const rollingReleases = ['sid', 'unstable']

const endSignals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/**
 * Its messages go to standard error, as progress. An interruption ends all of its processes, because the first of them
 * would wait for the others, and it removes its files.
 */
async function runBuilder(args: string[]): Promise<void> {
  const builder = spawn('mmdebstrap', args, { stdio: ['ignore', 2, 2], detached: true })
  const stop = () => {
    if (builder.pid !== undefined && builder.exitCode === null) process.kill(-builder.pid, 'SIGTERM')
  }
  for (const signal of endSignals) process.on(signal, stop)
  try {
    await new Promise<void>((done, reject) => {
      builder.once('error', (cause) =>
        reject(new CommandError('cannot start mmdebstrap; install it (apt-get install mmdebstrap)', { cause })),
      )
      builder.once('exit', (code, signal) => {
        if (code === 0) done()
        else reject(new CommandError(`mmdebstrap ended with ${signal ?? `exit code ${code}`}; no image was written`))
      })
    })
  } finally {
    for (const signal of endSignals) process.off(signal, stop)
  }
}

import type { Command } from 'commander'
import type { File, FileList } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples } from '../command.ts'
import { formatTime, printResult, sanitize, table } from '../output.ts'
import { allowSandboxFirst, type SandboxCli, sandboxHome, sandboxPath, withSandboxArgument } from './find.ts'

interface RecursiveOptions {
  recursive?: true
}

export function addFileCommands(sandbox: Command, cli: SandboxCli): void {
  const files = sandbox.command('files').alias('fs').description('files in a sandbox')
  allowSandboxFirst(files)
  files.addHelpText('after', `\nRelative paths in a sandbox start at ${sandboxHome}.`)
  addExamples(
    files,
    'berth sandbox files ls demo /etc',
    'berth sandbox files put demo ./project',
    'berth sandbox files get demo results.csv',
    'berth sandbox files cat demo notes.txt',
  )
  addReading(files, cli)
  addCopying(files, cli)
  addChanging(files, cli)
  addMoving(files, cli)
}

function addReading(files: Command, cli: SandboxCli): void {
  const list = withSandboxArgument(files.command('ls').alias('list'))
    .description('list a directory')
    .argument('[path]', 'the directory', '.')
    .option('-r, --recursive', 'include everything below')
    .action((name: string, path: string, options: RecursiveOptions) => listFiles(cli, name, path, options))
  addExamples(list, 'berth sandbox files ls demo', 'berth sandbox files ls demo /var/log -r --json')

  const cat = withSandboxArgument(files.command('cat'))
    .description('print the contents of files')
    .argument('<path...>', 'the files')
    .action(async (name: string, paths: string[]) => {
      for (const path of paths) await (await importFileCopy()).getFile(cli, name, path, '-')
    })
  addExamples(cat, 'berth sandbox files cat demo notes.txt', 'berth sandbox files cat demo /etc/os-release')
}

function addCopying(files: Command, cli: SandboxCli): void {
  const put = withSandboxArgument(files.command('put'))
    .description('copy a local file or directory into a sandbox')
    .argument('<local>', 'the local file or directory; - for standard input')
    .argument('[path]', 'the target, as for cp: a directory or a new name; defaults to the same name')
    .option('--mode <octal>', 'permissions of the file; defaults to those of the local file')
    .action(async (name: string, local: string, path: string | undefined, options: { mode?: string }) =>
      (await importFileCopy()).put(cli, name, local, path, options.mode),
    )
  addExamples(
    put,
    'berth sandbox files put demo app.py',
    'berth sandbox files put demo ./project /srv/',
    'berth sandbox files put demo ./project/. /srv/project',
    'echo hello | berth sandbox files put demo - greeting.txt',
  )

  const get = withSandboxArgument(files.command('get'))
    .description('copy a file or directory from a sandbox to this machine')
    .argument('<path>', 'the file or directory in the sandbox')
    .argument('[local]', 'the target, as for cp; defaults to the same name; - for standard output')
    .action(async (name: string, path: string, local: string | undefined) =>
      (await importFileCopy()).get(cli, name, path, local),
    )
  addExamples(
    get,
    'berth sandbox files get demo results.csv',
    'berth sandbox files get demo /srv/project ./copy',
    'berth sandbox files get demo dump.gz - | gunzip',
  )
}

function addChanging(files: Command, cli: SandboxCli): void {
  const mkdir = withSandboxArgument(files.command('mkdir'))
    .description('create directories and their parents')
    .argument('<path...>', 'the directories')
    .action(async (name: string, paths: string[]) => (await importFileCopy()).makeDirectories(cli, name, paths))
  addExamples(mkdir, 'berth sandbox files mkdir demo /srv/project/data')

  const rm = withSandboxArgument(files.command('rm'))
    .description('delete files')
    .argument('<path...>', 'the files')
    .option('-r, --recursive', 'include directories and their contents')
    .action((name: string, paths: string[], options: RecursiveOptions) => deleteFiles(cli, name, paths, options))
  addExamples(rm, 'berth sandbox files rm demo notes.txt', 'berth sandbox files rm demo -r /srv/project')

  const chmod = withSandboxArgument(files.command('chmod'))
    .description('change permissions')
    .argument('<mode>', 'octal, such as 0755')
    .argument('<path...>', 'the files')
    .option('-R, --recursive', 'include everything below')
    .action(async (name: string, mode: string, paths: string[], options: RecursiveOptions) => {
      for (const path of paths) await changeFile(cli, name, 'chmod', { path, mode, ...options })
    })
  addExamples(chmod, 'berth sandbox files chmod demo 0755 run.sh')

  const chown = withSandboxArgument(files.command('chown'))
    .description('change owners')
    .argument('<owner>', 'user or user:group; names or numeric ids in the sandbox')
    .argument('<path...>', 'the files')
    .option('-R, --recursive', 'include everything below')
    .action(async (name: string, owner: string, paths: string[], options: RecursiveOptions) => {
      for (const path of paths) await changeFile(cli, name, 'chown', { path, ...parseOwner(owner), ...options })
    })
  addExamples(chown, 'berth sandbox files chown demo www-data:www-data -R /srv/www')
}

function addMoving(files: Command, cli: SandboxCli): void {
  const mv = withSandboxArgument(files.command('mv'))
    .description('rename a file or directory')
    .argument('<source>', 'the current path')
    .argument('<dest>', 'the new path')
    .action((name: string, source: string, dest: string) => changeFile(cli, name, 'rename', { source, dest }))
  addExamples(mv, 'berth sandbox files mv demo draft.txt final.txt')

  const cp = withSandboxArgument(files.command('cp'))
    .description('copy a file or directory inside a sandbox')
    .argument('<source>', 'the current path')
    .argument('<dest>', 'the path of the copy')
    .option('-r, --recursive', 'include directories and their contents')
    .action((name: string, source: string, dest: string, options: RecursiveOptions) =>
      changeFile(cli, name, 'copy', { source, dest, ...options }),
    )
  addExamples(cp, 'berth sandbox files cp demo a.txt b.txt', 'berth sandbox files cp demo -r /srv/project /srv/copy')
}

function importFileCopy() {
  return import('./file-copy.ts')
}

async function listFiles(cli: SandboxCli, name: string, path: string, options: RecursiveOptions): Promise<void> {
  const terminal = cli.terminal()
  const query = new URLSearchParams({ path, workingDir: sandboxHome, ...(options.recursive && { recursive: 'true' }) })
  const answer = await request<FileList>(cli.session(), 'GET', `${sandboxPath(name)}/fs/list?${query}`)
  if (answer.entries.length === 0 && !terminal.json) return terminal.note('The directory is empty.')
  const rows = answer.entries.map((entry) => [
    formatMode(entry),
    `${entry.uid}:${entry.gid}`,
    entry.size,
    formatTime(entry.modTime),
    (options.recursive ? entry.path : entry.name) + (entry.target === undefined ? '' : ` -> ${entry.target}`),
  ])
  printResult(terminal, answer, () => table(['MODE', 'OWNER', 'SIZE', 'MODIFIED', 'NAME'], rows, terminal.colors))
  if (answer.truncated && !terminal.json) terminal.note('The list is truncated; list a subdirectory instead.')
}

const kinds: Record<string, string> = { directory: 'd', symlink: 'l', file: '-' }

/** Formats permissions as `ls -l` does. */
export function formatMode({ type, mode }: Pick<File, 'type' | 'mode'>): string {
  const bits = Number.parseInt(mode, 8)
  const rights = [...'rwxrwxrwx'].map((letter, index) => (bits & (0o400 >> index) ? letter : '-'))
  const special = [
    [0o4000, 2, 's'],
    [0o2000, 5, 's'],
    [0o1000, 8, 't'],
  ] as const
  for (const [bit, place, letter] of special) {
    if (bits & bit) rights[place] = rights[place] === 'x' ? letter : letter.toUpperCase()
  }
  return (kinds[type] ?? '?') + rights.join('')
}

async function deleteFiles(
  cli: SandboxCli,
  name: string,
  paths: string[],
  { recursive }: RecursiveOptions,
): Promise<void> {
  const terminal = cli.terminal()
  for (const path of paths) {
    const query = new URLSearchParams({ path, workingDir: sandboxHome, ...(recursive && { recursive: 'true' }) })
    const answer = await request(cli.session(), 'DELETE', `${sandboxPath(name)}/fs/delete?${query}`)
    printResult(terminal, answer, () => `Deleted ${sanitize(path)}.`)
  }
}

const pastTense: Record<string, string> = { chmod: 'Changed', chown: 'Changed', rename: 'Renamed', copy: 'Copied' }

async function changeFile(
  cli: SandboxCli,
  name: string,
  operation: string,
  body: Record<string, unknown>,
): Promise<void> {
  const path = `${sandboxPath(name)}/fs/${operation}`
  const answer = await request(cli.session(), 'POST', path, { ...body, workingDir: sandboxHome })
  const what = sanitize(String(body.path ?? `${body.source} to ${body.dest}`))
  printResult(cli.terminal(), answer, () => `${pastTense[operation]} ${what}.`)
}

/** Reads `user:group`. Numeric ids are sent as numbers. */
export function parseOwner(owner: string): { uid?: string | number; gid?: string | number } {
  const [user = '', group = ''] = owner.split(':')
  const word = (text: string) => (/^\d{1,9}$/.test(text) ? Number(text) : text)
  return { ...(user && { uid: word(user) }), ...(group && { gid: word(group) }) }
}

import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { Command } from 'commander'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { addBaseImageCommand, chooseSources, parseTargets } from './base-image.ts'

const targets = `Debian|Debian|bookworm|main|http://mirror.example/debian/
Debian|Debian|bookworm|contrib|http://mirror.example/debian/
Debian|Debian|bookworm-updates|main|http://mirror.example/debian/
Debian|Debian-Security|bookworm-security|main|http://mirror.example/debian-security/
Debian Backports|Debian Backports|bookworm-backports|main|http://mirror.example/debian/
. nodistro|. nodistro|nodistro|main|https://packages.example/node/
`

let directory: string
let printed: string[]

beforeEach(() => {
  directory = mkdtempSync(`${tmpdir()}/berth-base-`)
  printed = []
  program('apt-get', `cat <<'END'\n${targets}END`)
  // Records its arguments and writes the archive.
  program(
    'mmdebstrap',
    `printf '%s\\n' "$@" >${directory}/arguments; for word; do case $word in *.partial) echo tar >"$word" ;; esac; done`,
  )
  for (const name of ['sh', 'cat', 'mv', 'sleep']) symlinkSync(`/bin/${name}`, `${directory}/${name}`)
  vi.stubEnv('PATH', directory)
})

afterEach(() => {
  vi.unstubAllEnvs()
  rmSync(directory, { recursive: true, force: true })
})

function program(name: string, script: string): void {
  writeFileSync(`${directory}/${name}`, `#!/bin/sh\n${script}\n`)
  chmodSync(`${directory}/${name}`, 0o755)
}

const image = () => `${directory}/image.tar`

async function build(...args: string[]): Promise<void> {
  const terminal = { json: false, colors: false, print: (text: string) => printed.push(text), note: () => {} }
  const sandbox = new Command().exitOverride().configureOutput({ writeErr: () => {} })
  addBaseImageCommand(sandbox, { session: () => expect.unreachable(), terminal: () => terminal as never })
  for (const command of sandbox.commands) command.exitOverride().configureOutput({ writeErr: () => {} })
  await sandbox.parseAsync(['base-image', ...args], { from: 'user' })
}

describe('building a base image', () => {
  test('installs the programs of quickstarts from the mirrors of this machine', async () => {
    await build('--output', image(), '--include', 'make')
    expect(readFileSync(image(), 'utf8')).toBe('tar\n')
    const args = readFileSync(`${directory}/arguments`, 'utf8').trim().split('\n')
    const included = args
      .find((word) => word.startsWith('--include='))!
      .slice('--include='.length)
      .split(',')
    expect(included).toEqual(expect.arrayContaining(['python-is-python3', 'nodejs', 'npm', 'git', 'sudo', 'make']))
    expect(args.slice(-5)).toEqual([
      'bookworm',
      `${image()}.partial`,
      'deb http://mirror.example/debian/ bookworm main',
      'deb http://mirror.example/debian/ bookworm-updates main',
      'deb http://mirror.example/debian-security/ bookworm-security main',
    ])
    expect(printed.join('\n')).toContain(`--image tar:${image()}`)
  })

  test('replaces a file only when told to', async () => {
    writeFileSync(image(), 'mine')
    await expect(build('--output', image())).rejects.toThrow('--force replaces it')
    expect(readFileSync(image(), 'utf8')).toBe('mine')
    await build('--output', image(), '--force')
    expect(readFileSync(image(), 'utf8')).toBe('tar\n')
  })

  test('checks the output before it starts', async () => {
    await expect(build('--output', `${directory}/none/image.tar`)).rejects.toThrow('none does not exist')
    expect(existsSync(`${directory}/arguments`)).toBe(false)
  })

  test('leaves nothing behind when it fails', async () => {
    program('mmdebstrap', `for word; do case $word in *.partial) echo half >"$word" ;; esac; done; exit 25`)
    await expect(build('--output', image())).rejects.toThrow('mmdebstrap ended with exit code 25')
    expect(readdirSync(directory).filter((name) => name.startsWith('image'))).toEqual([])
  })

  test('ends all processes of an interrupted build', async () => {
    // Like mmdebstrap, the first process ends only after those that it started.
    const record = `echo $$ >${directory}/new; mv ${directory}/new ${directory}/pid`
    program('mmdebstrap', `exec 2>/dev/null; trap : TERM; sh -c '${record}; exec sleep 300'; exit 25`)
    const before = process.listenerCount('SIGINT')
    const failed = expect(build('--output', image())).rejects.toThrow('no image was written')
    await vi.waitUntil(() => existsSync(`${directory}/pid`), { timeout: 30_000 })
    process.emit('SIGINT')
    await failed
    const pid = Number(readFileSync(`${directory}/pid`, 'utf8'))
    expect(() => process.kill(pid, 0)).toThrow('ESRCH')
    expect(process.listenerCount('SIGINT')).toBe(before)
  }, 60_000)

  test('names the missing program and how to install it', async () => {
    rmSync(`${directory}/mmdebstrap`)
    await expect(build('--output', image())).rejects.toThrow('apt-get install mmdebstrap')
  })

  test.each([
    ['--suite', '--mode=root'],
    ['--suite', 'Bookworm'],
    ['--include', 'a,b'],
    ['--include', '-x'],
    ['--include', '../x'],
  ])('refuses %s %s', async (option, value) => {
    await expect(build('--output', image(), `${option}=${value}`)).rejects.toThrow('Write the name of')
    expect(existsSync(`${directory}/arguments`)).toBe(false)
  })
})

describe('the sources of an image', () => {
  test('of another release are those of the same mirrors', () => {
    expect(chooseSources(parseTargets(targets), 'trixie')).toEqual({
      suite: 'trixie',
      lines: [
        'deb http://mirror.example/debian/ trixie main',
        'deb http://mirror.example/debian/ trixie-updates main',
        'deb http://mirror.example/debian-security/ trixie-security main',
      ],
    })
  })

  test('of the rolling release have no updates', () => {
    const { lines } = chooseSources(parseTargets(targets), 'sid')
    expect(lines).toEqual(['deb http://mirror.example/debian/ sid main'])
  })

  test('need a Debian mirror', () => {
    const ubuntu = 'Ubuntu|Ubuntu|noble|main|http://mirror.example/ubuntu/\n'
    expect(() => chooseSources(parseTargets(ubuntu), undefined)).toThrow('knows no Debian mirror')
  })
})

import { spawnSync } from 'node:child_process'
import { Argument, Command, Option } from 'commander'
import { describe, expect, test } from 'vitest'
import { completionScript } from './completion.ts'

function sampleProgram(): Command {
  const program = new Command('berth').option('--json', "the answer, as it's sent").option('--url <url>', 'where')
  program.version('1.0.0')
  const apps = program.command('apps').alias('app').description("people's apps")
  apps.command('create').argument('<name>').option('-o, --org <slug>', 'organization').option('--flag', 'a "flag"')
  apps
    .command('list')
    .alias('ls')
    .addOption(new Option('--kind <kind>', 'one of').choices(['small', 'large']))
  program.command('shell').addArgument(new Argument('<shell>').choices(['bash', 'zsh']))
  return program
}

function completeInBash(...words: string[]): string[] {
  const list = ['berth', ...words].map((word) => `'${word}'`).join(' ')
  const script = `${completionScript(sampleProgram(), 'bash')}
COMP_WORDS=(${list}) COMP_CWORD=${words.length}
_berth
printf '%s\\n' "\${COMPREPLY[@]}"`
  const { stdout, stderr } = spawnSync('bash', ['-c', script], { encoding: 'utf8' })
  expect(stderr).toBe('')
  return stdout.split('\n').filter((line) => line !== '')
}

describe.each(['bash', 'zsh', 'fish'] as const)('the script for %s', (shell) => {
  const script = completionScript(sampleProgram(), shell)

  test.each(['apps', 'create', 'list', 'shell', 'help', 'org', 'flag', 'kind', 'json', 'url', 'small', 'large'])(
    'knows %s',
    (word) => {
      expect(script).toContain(word)
    },
  )
})

test('gives bash a script it accepts', () => {
  const { status, stderr } = spawnSync('bash', ['-n'], {
    input: completionScript(sampleProgram(), 'bash'),
    encoding: 'utf8',
  })
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
})

describe('completing in bash', () => {
  test('offers commands at the start, and options after a dash', () => {
    expect(completeInBash('')).toEqual(['apps', 'shell', 'help'])
    expect(completeInBash('--')).toEqual(['--json', '--url', '--version', '--help'])
    expect(completeInBash('a')).toEqual(['apps'])
  })

  test('offers what belongs to the command the words name', () => {
    expect(completeInBash('apps', 'c')).toEqual(['create'])
    expect(completeInBash('apps', 'create', '')).toEqual(['-o', '--org', '--flag', '-h', '--help', '--json', '--url'])
    expect(completeInBash('apps', 'create', '--')).toEqual(['--org', '--flag', '--help', '--json', '--url'])
  })

  test('follows aliases', () => {
    expect(completeInBash('app', 'ls', '--k')).toEqual(['--kind'])
  })

  test('does not take the value of an option for a command', () => {
    expect(completeInBash('--url', 'apps', 'sh')).toEqual(['shell'])
    expect(completeInBash('--json', 'apps', 'l')).toEqual(['list'])
  })

  test('offers the values an option or an argument may have', () => {
    expect(completeInBash('apps', 'list', '--kind', '')).toEqual(['small', 'large'])
    expect(completeInBash('apps', 'create', '--org', '')).toEqual([])
    expect(completeInBash('shell', 'z')).toEqual(['zsh'])
  })

  test('offers commands after help', () => {
    expect(completeInBash('help', '')).toEqual(['apps', 'shell'])
    expect(completeInBash('apps', 'help', '')).toEqual(['create', 'list'])
  })
})

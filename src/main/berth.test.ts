import type { Command } from 'commander'
import { describe, expect, test } from 'vitest'
import { completionScript } from '../cli/completion.ts'
import { buildProgram } from './berth.ts'

const program = buildProgram({ colors: false, print: () => {}, note: () => {} })
const commands = [program, ...below(program)]

function below(command: Command): Command[] {
  return command.commands.flatMap((each) => [each, ...below(each)])
}

function helpOf(command: Command): string {
  let text = ''
  command.configureOutput({ writeOut: (part) => (text += part) }).outputHelp()
  return text
}

test.each(commands.map((command) => [command.name(), command] as const))(
  '%s has a description, examples and described options',
  (_, command) => {
    expect(command.description()).not.toBe('')
    expect(helpOf(command)).toContain('Examples:\n  $ ')
    for (const option of command.options) expect(option.description).not.toBe('')
    for (const argument of command.registeredArguments) expect(argument.description).not.toBe('')
  },
)

describe.each(['bash', 'zsh', 'fish'] as const)('completion in %s', (shell) => {
  const script = completionScript(program, shell)

  test('contains every command and every option', () => {
    for (const command of commands) {
      expect(script).toContain(command.name())
      for (const alias of command.aliases()) expect(script).toContain(` ${alias}'`)
      for (const { long } of command.options)
        expect(script).toContain(shell === 'fish' ? ` -l ${long!.slice(2)} ` : long!)
    }
  })
})

import { Command } from 'commander'
import fc from 'fast-check'
import { afterEach, expect, test, vi } from 'vitest'
import { UsageError } from '../errors.ts'
import { addSecretCommands, parseVariables } from './secret.ts'

afterEach(() => vi.unstubAllGlobals())

test.each([
  ['A=1\nB=2', { A: '1', B: '2' }],
  ['# a comment\n\n  export A = 1 \r\n', { A: '1' }],
  [`A="one two"\nB='x'\nC=a"b"`, { A: 'one two', B: 'x', C: 'a"b"' }],
  ['KEY="""one\ntwo """\nB=', { KEY: 'one\ntwo ', B: '' }],
  ['KEY="""one"""', { KEY: 'one' }],
  ['KEY="""\tone \r\ntwo\r\n""" \r\nB=1 ', { KEY: '\tone \ntwo\n', B: '1' }],
  ['A=b=c', { A: 'b=c' }],
])('reads %j', (text, values) => {
  expect(parseVariables(text)).toEqual(values)
})

test.each([
  ['A=1\nB', 'line 2 is not of the form NAME=VALUE'],
  ['1A=2', 'line 1 is not of the form NAME=VALUE'],
  ['A="""x\ny', 'line 1: the closing """ is missing'],
])('rejects %j', (text, message) => {
  expect(() => parseVariables(text)).toThrow(message)
})

test('round-trips any value in triple quotes', () => {
  const name = fc.stringMatching(/^[A-Z_][A-Z0-9_]{0,9}$/)
  const value = fc.string({ unit: 'binary' }).filter((text) => !text.includes('"') && !text.includes('\r'))
  fc.assert(
    fc.property(fc.dictionary(name, value), (values) => {
      const text = Object.entries(values).map(([key, each]) => `${key}="""${each}"""`)
      expect(parseVariables(text.join('\n'))).toEqual({ ...values })
    }),
  )
})

test('parses or rejects any input', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), (text) => {
      try {
        parseVariables(text)
      } catch (error) {
        expect(error).toBeInstanceOf(UsageError)
      }
    }),
  )
})

async function secrets(input: string, ...args: string[]): Promise<unknown> {
  let sent: unknown
  vi.stubGlobal('fetch', async (_url: string, { body }: { body?: string }) => {
    sent = body && JSON.parse(body)
    return new Response(JSON.stringify({ secrets: [], version: 1 }))
  })
  const program = new Command('berth').exitOverride()
  addSecretCommands(program, {
    session: () => ({ url: 'http://platform', token: 'berth_x' }),
    terminal: () => ({ json: false, colors: false, print: () => {}, note: () => {} }),
    progress: { write: () => {} },
    readInput: async () => input,
  })
  await program.parseAsync(['secrets', ...args, '-a', 'web', '--stage'], { from: 'user' })
  return sent
}

test('takes values from arguments and one from standard input', async () => {
  expect(await secrets('a key\n', 'set', 'A=b=-', 'KEY=-', '__proto__=x')).toEqual({
    values: { A: 'b=-', KEY: 'a key', ['__proto__']: 'x' },
  })
  expect(await secrets('A=1\nB=2', 'import')).toEqual({ values: { A: '1', B: '2' } })
  expect(await secrets('', 'unset', 'A', 'B')).toEqual({ values: { A: null, B: null } })
})

test('rejects text that is not a pair, two values from one input, and no pairs', async () => {
  await expect(secrets('', 'set', 'A')).rejects.toThrow('of the form NAME=VALUE')
  await expect(secrets('', 'set', '=hidden')).rejects.not.toThrow('hidden')
  await expect(secrets('x', 'set', 'A=-', 'B=-')).rejects.toThrow('only one value')
  await expect(secrets('', 'import')).rejects.toThrow('no secrets')
})

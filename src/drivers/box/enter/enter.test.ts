import fc from 'fast-check'
import { expect, test } from 'vitest'
import { renderRequest } from './enter.ts'

/** Decodes a request like `lib.pl`. */
function read(env: Record<string, string>): Record<string, string[]> {
  let text = ''
  for (let part = 0; env[`BERTH_ENTER_${part}`] !== undefined; part += 1) text += env[`BERTH_ENTER_${part}`]
  const words = text.replace(/%(25|00)/g, (_, code) => (code === '00' ? '\0' : '%')).split('\0')
  const request: Record<string, string[]> = {}
  while (words.length > 0) {
    const [key = '', count] = words.splice(0, 2)
    request[key] = words.splice(0, Number(count))
  }
  return request
}

const word = fc.string({ unit: 'binary' }).filter((text) => !text.includes('\0') && text.isWellFormed())

test('preserves every word', () => {
  fc.assert(
    fc.property(fc.array(word), fc.array(word), (argv, env) => {
      expect(read(renderRequest({ argv, none: [], env }))).toEqual({ argv, none: [], env })
    }),
  )
})

test('stays below the kernel limit for one variable and splits no character', () => {
  const argv = ['ü'.repeat(99_999), 'x', '€%'.repeat(60_000)]
  const env = renderRequest({ argv })
  for (const value of Object.values(env)) expect(Buffer.byteLength(value)).toBeLessThan(131_000)
  expect(read(env)).toEqual({ argv })
})

test('rejects a zero byte, which no argument can hold', () => {
  expect(() => renderRequest({ argv: ['a\0b'] })).toThrow('zero byte')
})

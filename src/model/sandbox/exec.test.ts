import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { exitFrame, exitText, frame, readClientMessage, readExecRequest, readFlag, terminalCloseCode } from './exec.ts'

const read = (query: string) => readExecRequest(new URLSearchParams(query))

describe('an exec request', () => {
  test('has the words in order, and defaults for everything else', () => {
    expect(read('cmd=ls&cmd=-l&cmd=a+b')).toEqual({
      argv: ['ls', '-l', 'a b'],
      env: {},
      tty: false,
      stdin: false,
      cols: 80,
      rows: 24,
      maxRunAfterDisconnectMs: 10_000,
    })
  })

  test('takes the program from path or the first word, or runs a shell on a terminal', () => {
    expect(read('cmd=ls&cmd=-l&path=/bin/ls').argv).toEqual(['/bin/ls', '-l'])
    expect(read('path=/bin/ls').argv).toEqual(['/bin/ls'])
    expect(read('cmd[]=ls&cmd[]=-l').argv).toEqual(['ls', '-l'])
    expect(read('tty=true').argv).toEqual(['bash'])
    expect(() => read('')).toThrow('no command')
  })

  test('has stdin by default only on a terminal', () => {
    expect(read('cmd=sh&tty=true').stdin).toBe(true)
    expect(read('cmd=sh&tty=1&stdin=false').stdin).toBe(false)
    expect(read('cmd=sh&stdin=true').stdin).toBe(true)
  })

  test('runs without a client indefinitely on a terminal, and for ten seconds without one', () => {
    expect(read('cmd=sh&tty=true').maxRunAfterDisconnectMs).toBeNull()
    expect(read('cmd=sh&tty=true&max_run_after_disconnect=1m30s').maxRunAfterDisconnectMs).toBe(90_000)
    expect(read('cmd=sh&max_run_after_disconnect=5.0s').maxRunAfterDisconnectMs).toBe(5_000)
    for (const text of ['0', '0s', '-1s', 'soon', '']) {
      expect(read(`cmd=sh&max_run_after_disconnect=${text}`).maxRunAfterDisconnectMs).toBe(10_000)
      expect(read(`cmd=sh&tty=true&max_run_after_disconnect=${text}`).maxRunAfterDisconnectMs).toBeNull()
    }
  })

  test('accepts variables with any value, and rejects malformed ones', () => {
    expect(read('cmd=x&env=A%3D1&env=B%3Da%3Db&env=C%3D').env).toEqual({ A: '1', B: 'a=b', C: '' })
    expect(() => read('cmd=x&env=A')).toThrow('NAME=value')
    expect(() => read('cmd=x&env=%3D1')).toThrow('NAME=value')
  })

  test.each(['cmd=a%00', 'cmd=a&env=A%3D%00', 'cmd=a&dir=/%00', 'cmd=a&path=%00'])('%s is rejected', (query) => {
    expect(() => read(query)).toThrow('NUL byte')
  })

  test('starts in an absolute directory', () => {
    expect(read('cmd=x&dir=/tmp').dir).toBe('/tmp')
    expect(() => read('cmd=x&dir=tmp')).toThrow('absolute')
  })

  test('limits the terminal size', () => {
    expect(read('cmd=x&cols=132&rows=50')).toMatchObject({ cols: 132, rows: 50 })
    expect(read('cmd=x&cols=0&rows=-4')).toMatchObject({ cols: 80, rows: 24 })
    expect(read('cmd=x&cols=100000&rows=1e3')).toMatchObject({ cols: 80, rows: 24 })
  })

  test('keeps any words as they are', () => {
    const word = fc.string({ minLength: 1, unit: 'grapheme' }).filter((text) => !text.includes('\0'))
    fc.assert(
      fc.property(fc.array(word, { minLength: 1 }), (words) => {
        const search = new URLSearchParams(words.map((one): [string, string] => ['cmd', one]))
        expect(readExecRequest(new URLSearchParams(search.toString())).argv).toEqual(words)
      }),
    )
  })
})

describe('a client message', () => {
  test('resizes or signals, by name or number', () => {
    expect(readClientMessage('{"type":"resize","cols":120,"rows":40}')).toEqual({ type: 'resize', cols: 120, rows: 40 })
    for (const signal of ['"SIGTERM"', '"TERM"', '"term"', '15', '"15"']) {
      expect(readClientMessage(`{"type":"signal","signal":${signal}}`)).toEqual({ type: 'signal', signal: 15 })
    }
  })

  test.each([
    '{"type":"resize","cols":0,"rows":40}',
    '{"type":"resize","cols":"x","rows":40}',
    '{"type":"signal","signal":"NOPE"}',
    '{"type":"signal"}',
    '{"type":"other"}',
    '[]',
    'null',
    'text',
  ])('%s is ignored', (text) => {
    expect(readClientMessage(text)).toBeUndefined()
  })

  test('never throws', () => {
    const text = fc.oneof(fc.string(), fc.json())
    fc.assert(
      fc.property(text, (message) => {
        expect(() => readClientMessage(message)).not.toThrow()
      }),
    )
  })
})

test('frames are a byte and the data', () => {
  fc.assert(
    fc.property(fc.constantFrom(0, 1, 2), fc.uint8Array(), (stream, data) => {
      const bytes = frame(stream, Buffer.from(data))
      expect(bytes[0]).toBe(stream)
      expect(new Uint8Array(bytes.subarray(1))).toEqual(data)
    }),
  )
  expect([...exitFrame(143)]).toEqual([3, 143])
  expect(JSON.parse(exitText(7))).toEqual({ type: 'exit', exit_code: 7, code: 7 })
})

test('a terminal closes with 1000 only after success', () => {
  expect(terminalCloseCode(0)).toBe(1000)
  expect(terminalCloseCode(1)).toBe(4001)
  expect(terminalCloseCode(137)).toBe(4137)
})

test('flags accept the spellings of Go', () => {
  expect(['1', 't', 'TRUE', 'true'].map(readFlag)).toEqual([true, true, true, true])
  expect(['0', 'f', 'False'].map(readFlag)).toEqual([false, false, false])
  expect([readFlag(null), readFlag('maybe')]).toEqual([undefined, undefined])
})

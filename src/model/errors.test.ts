import { describe, expect, test } from 'vitest'
import { BerthError, describeError, errorTable, unavailable, wrongState } from './errors.ts'

describe('describeError', () => {
  test('joins the messages of the whole cause chain', () => {
    const error = new Error('start cluster a', { cause: new Error('spawn postgres', { cause: new Error('ENOENT') }) })
    expect(describeError(error)).toBe('start cluster a: spawn postgres: ENOENT')
  })

  test('ignores causes that are not errors', () => {
    expect(describeError(new Error('failed', { cause: 'text' }))).toBe('failed')
  })

  test('converts thrown values that are not errors', () => {
    expect(describeError('text')).toBe('text')
    expect(describeError(undefined)).toBe('undefined')
  })
})

test('the HTTP status follows from the error code', () => {
  for (const [code, status] of Object.entries(errorTable)) {
    expect(new BerthError(code as keyof typeof errorTable, '').statusCode).toBe(status)
  }
})

test('a temporary failure asks for a retry and keeps its cause for the log', () => {
  const cause = new Error('connection refused')
  expect(unavailable('the database is unavailable', cause)).toMatchObject({
    statusCode: 503,
    details: { retryAfterSeconds: 1 },
    cause,
  })
})

test('an illegal command names the commands that are possible', () => {
  expect(wrongState('stopped', 'stop', ['start', 'destroy']).message).toBe(
    'cannot stop while stopped; possible now: start, destroy',
  )
  expect(wrongState('destroyed', 'start', []).statusCode).toBe(409)
})

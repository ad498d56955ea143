import { afterEach, beforeEach, expect, test } from 'vitest'
import { type OpenTurns, openTurns } from '../../../src/store/turn.ts'
import { useDatabase } from '../../support/db.ts'

const database = useDatabase()
const patienceMs = 30_000
let here: OpenTurns
let there: OpenTurns

/** Two processes. */
beforeEach(() => {
  here = openTurns(database.config)
  there = openTurns(database.config)
})
afterEach(() => Promise.all([here.close(), there.close()]))

/** Begins a task, and returns the function that ends it. */
async function begin(turns: OpenTurns, key: string): Promise<() => Promise<unknown>> {
  const [begun, end] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const task = turns.take(key, patienceMs, () => {
    begun.resolve()
    return end.promise
  })
  await begun.promise
  return () => {
    end.resolve()
    return task
  }
}

test('tasks with one key run one after another, in one process and in several', async () => {
  const running = new Set<string>()
  const together: string[][] = []
  const run = (turns: OpenTurns, key: string) =>
    turns.take(key, patienceMs, async () => {
      together.push([...running].filter((other) => other === key))
      running.add(key)
      await new Promise((resolve) => setTimeout(resolve, 5))
      running.delete(key)
      return key
    })
  const results = await Promise.all([here, there, here, there].flatMap((turns) => [run(turns, 'a'), run(turns, 'b')]))
  expect(results.map((result) => result?.value)).toEqual(['a', 'b', 'a', 'b', 'a', 'b', 'a', 'b'])
  expect(together).toEqual(Array(8).fill([]))
})

test('a task that waits too long is given up and never runs', async () => {
  for (const other of [here, there]) {
    const end = await begin(other, 'a')
    let hasRun = false
    const late = here.take('a', 50, async () => {
      hasRun = true
    })
    expect(await late).toBeUndefined()
    await end()
    expect(await here.take('a', patienceMs, async () => 'next')).toEqual({ value: 'next' })
    expect(hasRun).toBe(false)
  }
})

test('the turn of a process that ends passes to another, and so does that of a task that fails', async () => {
  await begin(there, 'a')
  await there.close()
  expect(await here.take('a', patienceMs, async () => 'passed')).toEqual({ value: 'passed' })
  const failing = here.take('a', patienceMs, async () => {
    throw new Error('it failed')
  })
  await expect(failing).rejects.toThrow('it failed')
  expect(await here.take('a', patienceMs, async () => 'passed')).toEqual({ value: 'passed' })
})

test('a lost connection is replaced', async () => {
  expect(await here.take('a', patienceMs, async () => 1)).toEqual({ value: 1 })
  await database.db.query(
    `select pg_terminate_backend(pid) from pg_stat_activity
     where datname = current_database() and query like '%advisory%' and pid <> pg_backend_pid()`,
  )
  const again = async () => here.take('a', patienceMs, async () => 2).catch(() => undefined)
  await expect.poll(again).toEqual({ value: 2 })
})

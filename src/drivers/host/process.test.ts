import { spawnSync } from 'node:child_process'
import { expect, test } from 'vitest'

test('throws a clear error when no file descriptor is left', () => {
  const script = `
    import { openSync } from 'node:fs'
    import { run } from '${new URL('process.ts', import.meta.url).pathname}'
    const refused = async () => run('true', []).then(() => 'ran', (error) => error.message)
    try {
      for (;;) openSync('/dev/null')
    } catch {}
    console.log(await refused())`
  const program = ['--input-type=module', '-e', script]
  const { stdout, status } = spawnSync('sh', ['-c', 'ulimit -n 256; exec "$@"', 'sh', process.execPath, ...program], {
    encoding: 'utf8',
  })
  expect([stdout, status]).toEqual(['true could not be started: too many open files\n', 0])
})

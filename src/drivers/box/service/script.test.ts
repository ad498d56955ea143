import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { ServiceDefinition } from '../../../model/sandbox/service.ts'
import { boxPath, defaultEnvironment } from '../enter/enter.ts'
import { renderErrorLog, renderService } from './script.ts'

let directory: string
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'berth-script-'))
  mkdirSync(`${directory}/run/odd/state`, { recursive: true })
})
afterEach(() => rmSync(directory, { recursive: true, force: true }))

const nasty = [`'`, `"$HOME"`, '$(touch /tmp/x)', '`id`', '\\', 'a\nb', '-n', '*', '', ';#', '💥']

const given = { GIVEN: 'by the sandbox', OWN: 'no' }

function define(change: Partial<ServiceDefinition> = {}) {
  const definition = { name: 'odd', cmd: 'true', args: [], needs: [], httpPort: null, env: {}, dir: null, health: null }
  return renderService({ ...definition, ...change }, { ...defaultEnvironment(directory, undefined), ...given }, inner())
}

function inner() {
  const paths = { service: `${directory}/service`, run: `${directory}/run`, log: `${directory}/log`, home: directory }
  return { ...paths, dir: directory, shell: '/bin/sh', path: boxPath, prefix: '' }
}

/** Runs a script like s6 does, with readiness on descriptor 3. */
function runScript(text: string): string {
  writeFileSync(`${directory}/script`, text)
  return execFileSync('sh', ['-c', `exec 3>${directory}/ready; exec sh ${directory}/script`], { encoding: 'utf8' })
}

describe('the script of a service', () => {
  test('passes arguments and variables on unchanged', () => {
    const program = `process.stdout.write(JSON.stringify([process.argv.slice(1), process.env, process.cwd()]))`
    const { run } = define({
      cmd: process.execPath,
      args: ['-e', program, '--', ...nasty],
      env: { OWN: `it's "me" $PATH`, state: 'x', PATH: '/nowhere' },
    })
    const [words, variables, cwd] = JSON.parse(runScript(run!))
    expect(words).toEqual(nasty)
    expect(variables).toMatchObject({
      GIVEN: 'by the sandbox',
      OWN: `it's "me" $PATH`,
      state: 'x',
      PATH: '/nowhere',
      HOME: directory,
    })
    expect(cwd).toBe(directory)
    expect(readFileSync(`${directory}/ready`, 'utf8')).toBe('\n')
    expect(readFileSync(`${directory}/run/odd/state/begun`, 'utf8')).toMatch(/^\d+ 0\n$/)
  })

  test.each([
    ['no-such-program', 127, 'exec: "no-such-program": not found'],
    ['/no/such', 127, 'exec: "/no/such": not found'],
    ['/etc', 126, 'exec: "/etc": permission denied'],
    ['/etc/passwd', 126, 'exec: "/etc/passwd": permission denied'],
    ["it's\nodd", 127, 'exec: "it\'s?odd": not found'],
  ])('reports that %j cannot be started', (cmd, code, problem) => {
    expect(() => runScript(define({ cmd }).run!)).toThrow(expect.objectContaining({ status: code }))
    expect(readFileSync(`${directory}/run/odd/state/problem`, 'utf8')).toBe(`${problem}\n`)
  })

  test('is valid shell, whatever the definition contains', () => {
    const files = define({
      cmd: `o'dd`,
      args: nasty,
      needs: ['a.b', 'c_d'],
      dir: `/it's`,
      health: { check: { command: nasty }, intervalMs: 100, timeoutMs: 1500, threshold: 2 },
    })
    const http = { check: { http: { path: `/'$x`, port: 80 } }, intervalMs: 1000, timeoutMs: 1000, threshold: 1 }
    const scripts = [files.run, files.finish, files.health, files['log/run'], renderErrorLog('odd', inner()).run]
    for (const script of [...scripts, define({ health: http }).health]) {
      writeFileSync(`${directory}/script`, script!)
      expect(() => execFileSync('sh', ['-n', `${directory}/script`])).not.toThrow()
    }
  })
})

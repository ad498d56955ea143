// Clients that other people generate from the OpenAPI document, used against a real platform.
import { execFile } from 'node:child_process'
import { cpSync, existsSync, mkdtempSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth } from '../support/berth.ts'
import { destroy } from '../support/client.ts'
import { removeDirectory } from '../support/directory.ts'

const run = promisify(execFile)
/** Installed by scripts/setup.sh. */
const installed = resolve('.cache/clients')
const packages = `${installed}/node_modules`
const python = `${installed}/venv/bin`

describe.runIf(existsSync(`${installed}/installed`))('a generated client creates, restores and deletes', () => {
  const berth = new Berth()
  // Below the packages, so that programs find them.
  const directory = mkdtempSync(join(installed, 'run-'))
  const generated = (name: string) => `${directory}/generated/${name}`

  beforeAll(async () => {
    cpSync('test/clients', directory, { recursive: true })
    await berth.up()
    const document = await fetch(`${berth.addresses.api}/openapi.json`)
    writeFileSync(`${directory}/openapi.json`, await document.text())
  }, 180_000)

  afterAll(async () => {
    await destroy(berth)
    await removeDirectory(directory)
  })

  async function node(script: string, ...args: string[]): Promise<string> {
    const { stdout } = await execute(process.execPath, [script, ...args])
    return stdout
  }

  async function execute(program: string, args: string[], environment: Record<string, string> = {}) {
    const env = { PATH: `${python}:${process.env.PATH}`, HOME: directory, ...environment }
    return run(program, args, { cwd: directory, env, maxBuffer: 16 * 1024 ** 2 }).catch(
      (error: Error & { stdout: string; stderr: string }) => {
        throw new Error(`${program} ${args.join(' ')}: ${error.message}\n${error.stdout}\n${error.stderr}`)
      },
    )
  }

  async function play(program: string, ...args: string[]): Promise<unknown> {
    const access = { BERTH_URL: berth.addresses.api, BERTH_TOKEN: berth.token }
    const { stdout } = await execute(program, args, access)
    return JSON.parse(stdout)
  }

  test('with openapi-typescript and openapi-fetch, and with hey-api', async () => {
    await node(`${packages}/openapi-typescript/bin/cli.js`, 'openapi.json', '-o', generated('openapi-typescript.ts'))
    await node(`${packages}/@hey-api/openapi-ts/bin/run.js`, '-i', 'openapi.json', '-o', generated('hey-api'))
    await node(`${packages}/typescript/bin/tsc`)
    expect(await play(process.execPath, 'built/openapi-fetch.js')).toEqual({
      name: 'from-fetch-again',
      refused: 422,
      gone: [404, 404],
    })
    expect(await play(process.execPath, 'built/hey-api.js')).toEqual({
      name: 'from-hey-again',
      refused: 422,
      gone: [404, 404],
    })
  }, 400_000)

  test('with openapi-python-client', async () => {
    const made = await execute(`${python}/openapi-python-client`, [
      ...['generate', '--path', 'openapi.json', '--output-path', generated('python')],
      ...['--meta', 'none', '--config', 'python.yaml'],
    ])
    expect(`${made.stdout}${made.stderr}`).not.toContain('WARNING')
    expect(await play(`${python}/python3`, '-m', 'python_client')).toEqual({
      name: 'from-python-again',
      refused: 422,
      gone: [404, 404],
    })
  }, 300_000)
})

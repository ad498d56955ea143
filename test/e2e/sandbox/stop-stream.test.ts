import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { until } from '../../support/until.ts'

let berth: Berth

beforeAll(() => {
  berth = new Berth()
})
afterAll(() => berth?.destroy())

test.each(['a checkpoint', 'a restore'])(
  'SIGTERM ends the control plane while the stream of %s is open',
  async (what) => {
    const control = await berth.up()
    const ask = (method: string, path: string, body?: string | object) =>
      fetch(`${berth.addresses.sandbox}/v1/sandboxes${path}`, {
        method,
        headers: { authorization: `Bearer ${berth.token}` },
        ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      })
    const name = what.replace(' ', '-')
    expect((await ask('POST', '', { name })).status).toBe(201)
    // Many files, so that copying them takes longer than the stop.
    const script = 'mkdir /home/sprite/d && cd /home/sprite/d && for i in $(seq 5000); do echo $i > $i; done'
    const made = await ask('POST', `/${name}/exec?cmd=sh&cmd=-c&cmd=${encodeURIComponent(script)}`)
    expect(made.status).toBe(200)
    await made.arrayBuffer()
    let path = `/${name}/checkpoint`
    if (what === 'a restore') {
      await (await ask('POST', path, {})).text()
      path = `/${name}/checkpoints/v1/restore`
    }
    const stream = await ask('POST', path, {})
    expect(stream.status).toBe(200)
    const reading = stream.text().catch(() => 'cut')
    control.kill('SIGTERM')
    await until(() => control.exitCode !== null, 60)
    await reading
    expect(control.exitCode).toBe(0)
  },
)

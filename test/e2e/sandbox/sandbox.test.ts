// Sandboxes and their checkpoints, with the public client library on a real platform.
import { existsSync, readdirSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import { APIError, type Sprite, SpritesClient, type StreamMessage } from '@fly/sprites'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { controlGroups, destroy, processesOf } from '../../support/client.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
let client: SpritesClient

const connect = () => {
  client = new SpritesClient(berth.token, { baseURL: berth.addresses.sandbox })
}

beforeAll(async () => {
  await berth.up()
  connect()
})

afterAll(() => destroy(berth))

const sh = async (sprite: Sprite, script: string) => String((await sprite.execFile('sh', ['-c', script])).stdout).trim()

async function all(stream: AsyncIterable<StreamMessage>): Promise<StreamMessage[]> {
  const messages = []
  for await (const message of stream) messages.push(message)
  return messages
}

/** The id in the last line of a checkpoint stream. */
async function checkpoint(sprite: Sprite, comment?: string): Promise<string> {
  const last = (await all(await sprite.createCheckpoint(comment))).at(-1)
  expect(last?.type).toBe('complete')
  return /Checkpoint (v\d+) created/.exec(last!.data!)![1]!
}

async function restore(sprite: Sprite, id: string): Promise<void> {
  expect((await all(await sprite.restoreCheckpoint(id))).at(-1)).toMatchObject({ type: 'complete' })
}

/** The automatic checkpoints of restores, which the client library cannot list. */
async function automatic(sprite: Sprite): Promise<string[]> {
  const reply = await fetch(`${berth.addresses.sandbox}/v1/sprites/${sprite.name}/checkpoints?includeAuto=true`, {
    headers: { authorization: `Bearer ${berth.token}` },
  })
  const list = (await reply.json()) as { id: string; is_auto: boolean }[]
  return list.filter((one) => one.is_auto).map((one) => one.id)
}

async function refusal(answer: Promise<unknown>): Promise<APIError> {
  const error = await answer.then(
    () => undefined,
    (reason: unknown) => reason,
  )
  if (!(error instanceof APIError)) throw new Error(`it was not refused: ${error}`)
  return error
}

describe('a sandbox', () => {
  test('is created, read, changed, listed and deleted', async () => {
    const made = await client.createSprite('first', {
      config: { ramMB: 256, cpus: 1, storageGB: 1 },
      environment: { GREETING: 'hello there' },
      labels: ['one'],
      urlSettings: { auth: 'public' },
    })
    expect(made).toMatchObject({
      name: 'first',
      organizationName: 'personal',
      status: 'cold',
      labels: ['one'],
      config: { ramMB: 256, cpus: 1, storageGB: 1 },
      urlSettings: { auth: 'public' },
    })
    expect(made.url).toMatch(/^http:\/\/first\.sandbox\.localhost:\d+\/$/)
    expect(await refusal(client.createSprite('first'))).toMatchObject({ statusCode: 409 })
    expect(await refusal(client.createSprite('Not a name'))).toMatchObject({ statusCode: 400 })
    expect(await client.checkSprite('first')).toMatchObject({ spriteName: 'first', status: 'hibernated' })

    expect(await sh(made, 'echo $GREETING; hostname')).toBe('hello there\nfirst')
    const running = await client.getSprite('first')
    expect(running).toMatchObject({ status: 'running', lastRunningAt: expect.any(Date) })
    expect(await client.checkSprite('first')).toMatchObject({ status: 'healthy' })

    const changed = await client.updateSprite('first', { labels: ['two'], urlSettings: { auth: 'sprite' } })
    expect(changed).toMatchObject({ labels: ['two'], urlSettings: { auth: 'sprite' }, config: { ramMB: 256 } })

    await client.createSprite('second')
    const list = await client.listSprites({ prefix: 'f', maxResults: 100 })
    expect(list).toMatchObject({ hasMore: false, running: 1, cold: 1 })
    expect(list.sprites.map((sprite) => sprite.name)).toEqual(['first'])
    expect((await client.listAllSprites()).map((sprite) => sprite.name)).toEqual(['first', 'second'])

    await client.deleteSprite('second')
    expect(await refusal(client.getSprite('second'))).toMatchObject({ statusCode: 404, errorCode: 'not_found' })
  })

  test('reports its isolation in every response', async () => {
    const reply = await fetch(`${berth.addresses.sandbox}/v1/sandboxes/first`, {
      headers: { authorization: `Bearer ${berth.token}` },
    })
    expect(await reply.json()).toMatchObject({ isolation: { kind: expect.stringMatching(/^(bubblewrap|none)$/) } })
    expect(reply.headers.get('sprite-version')).toMatch(/^0\.0\.1-rc\d+$/)
  })

  test('keeps its files over a restart, which ends its processes', async () => {
    const sprite = client.sprite('first')
    const first = await sh(
      sprite,
      'echo kept > file; (sleep 1000 > /dev/null 2>&1 &) ; cat /proc/1/stat | cut -d " " -f 22',
    )
    expect(await client.restartSprite('first')).toMatchObject({ spriteName: 'first' })
    expect(await sh(sprite, 'cat file; ps -e -o args= | grep -c "[s]leep 1000" || true')).toBe('kept\n0')
    expect(await sh(sprite, 'cat /proc/1/stat | cut -d " " -f 22')).not.toBe(first)
    await client.upgradeSprite('first')
    expect(await sh(sprite, 'cat file')).toBe('kept')
  })

  test('can be watched', async () => {
    const stream = await client.watchSprites({ prefix: 'watched' })
    const told: string[] = []
    const watching = (async () => {
      for await (const event of stream)
        if (event.name) told.push(`${event.name} ${event.status} ${event.organization.running}`) // the others are heartbeats
    })().catch(() => undefined)
    const sprite = await client.createSprite('watched-1')
    await until(() => told.length === 1)
    await sh(sprite, 'true')
    await until(() => told.length === 2)
    await client.deleteSprite('watched-1')
    await until(() => told.length === 3)
    expect(told).toEqual(['watched-1 cold 1', 'watched-1 running 2', 'watched-1 deleted 1'])
    stream.close()
    await watching
  })

  test('applies the memory limit of its policy at once', async () => {
    const sprite = client.sprite('first')
    expect(await sprite.getResourcesPolicy()).toEqual({ memory: { limitMB: 256, autoscale: false } })
    await sprite.updateResourcesPolicy({ memory: { limitMB: 128 } })
    expect(await sprite.getResourcesPolicy()).toEqual({ memory: { limitMB: 128, autoscale: false } })
    await sprite.deleteResourcesPolicy()
    await sprite.updateNetworkPolicy({ rules: [{ domain: '*.example.com', action: 'deny' }] })
    expect(await sprite.getNetworkPolicy()).toEqual({ rules: [{ domain: '*.example.com', action: 'deny' }] })
    await sprite.updateNetworkPolicy({ rules: [] })
    await expect(sprite.updateNetworkPolicy({ rules: [{ domain: 'x y', action: 'deny' }] })).rejects.toThrow('domain')
  })

  test('has the privileges of its policy', async () => {
    const sprite = await client.createSprite('bare')
    const rights = () =>
      sh(sprite, 'grep -h CapEff /proc/self/status /proc/1/status | cut -f 2; touch f; chown 1 f 2>&1')
    expect(await rights()).toMatch(/^([0-9a-f]*[1-9a-f][0-9a-f]*)\n\1$/)
    await sprite.updatePrivilegesPolicy({ profile: 'minimal' })
    await client.restartSprite('bare')
    const none = await sprite.execFile('sh', ['-c', 'grep -h CapEff /proc/self/status /proc/1/status | cut -f 2'])
    expect(String(none.stdout).trim()).toBe('0000000000000000\n0000000000000000')
    await expect(sh(sprite, 'chown 2 f')).rejects.toThrow()
    expect(await sprite.getPrivilegesPolicy()).toMatchObject({ profile: 'minimal' })
    await expect(sprite.updatePrivilegesPolicy({ profile: 'privileged' })).rejects.toThrow('400')
    await client.deleteSprite('bare')
  })

  test('leaves nothing behind when it is deleted', async () => {
    const sprite = await client.createSprite('gone')
    await sh(sprite, '(sleep 1000 > /dev/null 2>&1 &)')
    await checkpoint(sprite)
    const { id } = await client.getSprite('gone')
    await client.deleteSprite('gone')
    await until(() => !existsSync(`${berth.home}/sandbox/${id}`))
    await until(() => processesOf(id!).length === 0)
    await until(() => controlGroups(berth, `sandbox-${id}`).length === 0)
    await until(() => readdirSync(`${berth.home}/tree`).every((name) => !name.includes(id!)))
    await client.createSprite('gone')
    await client.deleteSprite('gone')
  })
})

describe('checkpoints', () => {
  let sprite: Sprite
  beforeAll(async () => {
    sprite = await client.createSprite('saved')
  })

  test('restore files, also hidden ones, and show the history', async () => {
    await sh(sprite, 'echo one > word; rm /etc/debian_version; echo mine > /usr/local/bin/mine')
    expect(await checkpoint(sprite, 'first state')).toBe('v1')
    await sh(sprite, 'echo two > word; echo 12 > /etc/debian_version; rm /usr/local/bin/mine')
    expect(await checkpoint(sprite)).toBe('v2')
    const look = () => sh(sprite, 'cat word /etc/debian_version /usr/local/bin/mine 2>/dev/null; true')
    expect(await look()).toBe('two\n12')
    const inside = () => sh(sprite, 'cd /.sprite/checkpoints && ls && cat v1/home/sprite/word v2/home/sprite/word')
    expect(await inside()).toBe('v1\nv2\none\ntwo')
    await restore(sprite, 'v1')
    expect(await look()).toBe('one\nmine')
    expect(await inside()).toBe('auto-1\nv1\nv2\none\ntwo')
    await restore(sprite, 'v2')
    expect(await look()).toBe('two\n12')
    expect(await checkpoint(sprite)).toBe('v3')
    const list = await sprite.listCheckpoints()
    expect(list.map(({ id, comment, sourceId }) => ({ id, comment, sourceId }))).toEqual([
      { id: 'v3', comment: undefined, sourceId: 'v2' },
      { id: 'v2', comment: undefined, sourceId: undefined },
      { id: 'v1', comment: 'first state', sourceId: undefined },
    ])
    expect((await sprite.listCheckpoints('v2')).map(({ id }) => id)).toEqual(['v3', 'v2'])
    expect(await sprite.getCheckpoint('v1')).toMatchObject({ comment: 'first state', createTime: expect.any(Date) })
    await expect(sprite.getCheckpoint('v9')).rejects.toThrow('not found')
    await restore(sprite, 'auto-1')
    expect(await look()).toBe('two\n12')
  })

  test('end all processes, and services are started again', async () => {
    await sh(sprite, 'rm -f order')
    const service = (name: string) => ['sh', '-c', `echo ${name} >> /home/sprite/order; exec sleep 1000`]
    for (const [name, needs] of [
      ['base', []],
      ['app', ['base']],
    ] as const) {
      const [cmd, ...args] = service(name)
      const stream = await sprite.createService(name, { cmd: cmd!, args, needs: [...needs] }, '100ms')
      await stream.processAll(() => undefined)
    }
    // A service without a health check is ready before its first line has run.
    const started = async () => (await sh(sprite, 'sort order')).split('\n')
    await until(async () => isDeepStrictEqual(await started(), ['app', 'base']))
    const before = (await sprite.listServices()).map((one) => one.state?.pid)
    const id = await checkpoint(sprite)
    expect((await sprite.listServices()).map((one) => one.state?.pid)).toEqual(before)
    await sh(sprite, 'echo changed > order')
    await restore(sprite, id)
    await until(async () => isDeepStrictEqual(await started(), ['app', 'app', 'base', 'base']))
    await until(async () => (await sprite.listServices()).every((one) => one.state?.status === 'running'))
  })

  test('can be restored, and the sandbox restarted, while commands arrive', async () => {
    await sh(sprite, 'echo steady > word')
    const id = await checkpoint(sprite)
    let isOver = false
    const words = new Set<string>()
    const asking = (async () => {
      // A command that is running when the sandbox stops ends with it.
      while (!isOver) words.add(await sh(sprite, 'cat word').catch(() => 'ended'))
    })()
    for (let i = 0; i < 3; i++) {
      await restore(sprite, id)
      await client.restartSprite('saved')
    }
    isOver = true
    await asking
    words.add(await sh(sprite, 'cat word'))
    expect([...words].filter((word) => word !== 'ended')).toEqual(['steady'])
  })

  test('continue when the control plane is killed, and are made once', async () => {
    await sh(
      sprite,
      'mkdir big && cd big && for i in $(seq 60); do head -c 2000000 /dev/urandom > f$i; done; cat f* | md5sum > ../sum',
    )
    const before = await sprite.listCheckpoints()
    const stream = await sprite.createCheckpoint('killed')
    const first = await stream.next()
    expect(first?.type).toBe('info')
    const control = berth.children.at(-1)!
    await end(control)
    stream.close()
    await berth.up()
    connect()
    sprite = client.sprite('saved')
    await until(async () => (await sprite.listCheckpoints()).length === before.length + 1)
    const [made] = await sprite.listCheckpoints()
    expect(made).toMatchObject({ comment: 'killed' })
    await sh(sprite, 'rm -rf big sum')
    const automaticBefore = await automatic(sprite)
    const restoring = await sprite.restoreCheckpoint(made!.id)
    expect((await restoring.next())?.type).toBe('info')
    await end(berth.children.at(-1)!)
    restoring.close()
    await berth.up()
    connect()
    sprite = client.sprite('saved')
    // The state before the restore is listed when the restore is complete.
    await until(async () => (await automatic(sprite))[0] !== automaticBefore[0])
    expect(await sh(sprite, 'cat big/f* | md5sum | cmp - sum && echo same')).toBe('same')
    expect((await sprite.listCheckpoints()).length).toBe(before.length + 1)
    expect(await checkpoint(sprite)).toMatch(/^v\d+$/)
  })
})

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { NamedApp, NamedMachine } from '../../store/app/name.ts'
import { createDatabaseRoutes } from '../routing/database.ts'
import { readFrame } from './frame.ts'
import { answerCode, isReadable, readQuestion, recordType, writeAnswer } from './message.ts'
import { NameTable } from './table.ts'

const { A, AAAA, TXT, ANY } = recordType

function machine(slot: number, given: Partial<NamedMachine> = {}): NamedMachine {
  return {
    id: `m${slot}`,
    networkNumber: 1,
    slot,
    region: 'ams',
    isStarted: true,
    isListed: true,
    group: 'app',
    metadata: {},
    ...given,
  }
}

function app(name: string, machines: NamedMachine[], given: Partial<NamedApp> = {}): NamedApp {
  return { id: `id-${name}`, name, networkNumber: 1, machines, services: [], ...given }
}

function tableOf(...apps: NamedApp[]): NameTable {
  const table = new NameTable(0)
  table.fill(apps)
  return table
}

const at = (...slots: number[]) => slots.map((slot) => `fdaa:0:1:0:1:0:${slot.toString(16)}:2`)

describe('the name table', () => {
  const web = app('web', [
    machine(1, { group: 'Front', metadata: { Role: 'Main', v: '1.2' } }),
    machine(2, { region: 'fra', metadata: { role: 'main' } }),
    machine(3, { isStarted: false, region: 'lhr' }),
    machine(4, { isListed: false }),
  ])
  const db = app('db', [machine(9, { networkNumber: 2 })], {
    networkNumber: 2,
    services: [
      { address: 'fdaa:0:2:0:0:0:1:3', networkNumber: 2 },
      { address: 'fdaa:0:1:0:0:0:1:3', networkNumber: 1 },
    ],
  })
  const table = tableOf(web, db, app('idle', []))
  const addresses = (name: string, network = 1) => table.answer(network, name, AAAA)?.addresses
  const text = (name: string, network = 1) => table.answer(network, name, TXT)?.text

  test('resolves an app to its started machines', () => {
    expect(addresses('web.internal')).toEqual(at(1, 2))
    expect(addresses('global.web.internal')).toEqual(at(1, 2))
    expect(addresses('fra.web.internal')).toEqual(at(2))
    expect(addresses('m2.vm.web.internal')).toEqual(at(2))
    expect(addresses('front.process.web.internal')).toEqual(at(1))
    expect(addresses('top1.nearest.of.web.internal')).toEqual(at(1))
    expect(addresses('top9.nearest.of.web.internal')).toEqual(at(1, 2))
    expect(addresses('main.role.kv._metadata.web.internal')).toEqual(at(1, 2))
    expect(addresses('1.2.v.kv._metadata.web.internal')).toEqual(at(1))
  })

  test('lists apps, machines and regions', () => {
    expect(text('vms.web.internal')).toBe('m1 ams,m2 fra')
    expect(text('all.vms.web.internal')).toBe('m1 ams,m2 fra,m3 lhr')
    expect(text('regions.web.internal')).toBe('ams,fra')
    expect(text('all.regions.web.internal')).toBe('ams,fra,lhr')
    expect(text('_apps.internal')).toBe('idle,web')
    expect(addresses('_api.internal')).toEqual(['fdaa::3'])
    expect(addresses('_api.internal', 7)).toEqual(['fdaa::3'])
    expect(text('_instances.internal')).toBe(
      `instance=m1,app=web,ip=${at(1)[0]},region=ams;instance=m2,app=web,ip=${at(2)[0]},region=fra`,
    )
    expect(text('all._instances.internal')).toContain('instance=m3')
  })

  test('resolves clusters in the networks that may use them', () => {
    const named = tableOf(app('pg', [machine(1)]))
    const cluster = { id: 'abcdefghij012345', number: 1, directPort: 2, poolerPort: 3, networks: [1] }
    named.fillDatabases(createDatabaseRoutes(cluster, 0))
    const find = (name: string, network = 1) => named.answer(network, name, AAAA)
    expect(find('abcdefghij012345.pg.internal')?.addresses).toEqual(['fdaa:0:1::1:4'])
    expect(find('direct.abcdefghij012345.pg.internal')?.addresses).toEqual(['fdaa:0:1::1:5'])
    expect(named.answer(1, 'abcdefghij012345.pg.internal', A)).toEqual({ code: answerCode.ok, zone: 'internal' })
    expect(find('abcdefghij012345.pg.internal', 2)?.code).toBe(answerCode.noSuchName)
    expect(find('pooler.abcdefghij012345.pg.internal')?.code).toBe(answerCode.noSuchName)
    // An app may be named like the parent domain of clusters.
    expect(find('ams.pg.internal')?.addresses).toEqual(at(1))
    named.fillDatabases([])
    expect(find('abcdefghij012345.pg.internal')?.code).toBe(answerCode.noSuchName)
  })

  test('resolves flycast names to the address in the network of the client', () => {
    expect(addresses('db.flycast')).toEqual(['fdaa:0:1:0:0:0:1:3'])
    expect(addresses('db.flycast', 2)).toEqual(['fdaa:0:2:0:0:0:1:3'])
    expect(table.answer(1, 'web.flycast', AAAA)?.code).toBe(answerCode.noSuchName)
    expect(table.answer(3, 'db.flycast', AAAA)?.code).toBe(answerCode.noSuchName)
  })

  test('hides the names of other networks', () => {
    expect(addresses('db.internal', 2)).toEqual(['fdaa:0:2:0:1:0:9:2'])
    for (const name of ['db.internal', 'vms.db.internal', 'm9.vm.db.internal', 'm9.vm.web.internal']) {
      expect(table.answer(1, name, ANY)).toEqual({ code: answerCode.noSuchName, zone: 'internal' })
    }
    expect(text('_apps.internal', 2)).toBe('db')
    expect(table.answer(3, '_apps.internal', TXT)?.text).toBe('')
  })

  test('answers NXDOMAIN for unknown names', () => {
    const unknown = ['internal', 'nobody.internal', 'xyz.web.internal', 'm3.vm.web.internal', 'a.b.c.web.internal']
    for (const name of [...unknown, 'top0.nearest.of.web.internal', '_x.internal', 'x._apps.internal']) {
      expect(table.answer(1, name, AAAA)).toEqual({ code: answerCode.noSuchName, zone: 'internal' })
    }
  })

  test('answers a known name without the requested record type with an empty response', () => {
    expect(table.answer(1, 'web.internal', A)).toEqual({ code: answerCode.ok, zone: 'internal' })
    expect(table.answer(1, 'idle.internal', AAAA)).toEqual({ code: answerCode.ok, zone: 'internal' })
    expect(table.answer(1, '_apps.internal', AAAA)).toEqual({ code: answerCode.ok, zone: 'internal' })
  })

  test('leaves public names to other resolvers, except reverse names of private addresses', () => {
    for (const name of ['', 'example.com', 'internal.example.com', 'xinternal']) {
      expect(table.answer(1, name, AAAA)).toBeUndefined()
    }
    expect(table.answer(1, '3.0.0.a.a.d.f.ip6.arpa', 12)?.code).toBe(answerCode.noSuchName)
  })

  test('does not answer NXDOMAIN before it is filled', () => {
    expect(new NameTable(0).answer(1, 'web.internal', AAAA)).toEqual({ code: answerCode.failed })
  })

  test('follows changes', () => {
    const changing = tableOf(web, db)
    changing.change(['id-web', 'id-db'], [app('renamed', [machine(5)], { id: 'id-web' })])
    expect(changing.answer(1, 'renamed.internal', AAAA)?.addresses).toEqual(at(5))
    for (const network of [1, 2]) {
      for (const name of ['web.internal', 'db.internal', 'db.flycast']) {
        expect(changing.answer(network, name, AAAA)?.code).toBe(answerCode.noSuchName)
      }
    }
  })

  test('accepts any name', () => {
    const label = fc.oneof(
      fc.constantFrom('web', 'kv', '_metadata', 'vm', 'process', 'all', 'vms', '', '_apps'),
      fc.string(),
    )
    const zone = fc.constantFrom('internal', 'flycast')
    fc.assert(
      fc.property(fc.array(label), zone, fc.nat(65_535), (labels, last, type) => {
        expect(table.answer(1, [...labels, last].join('.'), type)).toHaveProperty('code')
      }),
    )
  })
})

describe('DNS messages', () => {
  function ask(name: string, type: number, extra = Buffer.alloc(0)): Buffer {
    const labels = name.split('.').map((label) => Buffer.from([label.length, ...Buffer.from(label)]))
    const header = Buffer.from([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, extra.length > 0 ? 1 : 0])
    return Buffer.concat([header, ...labels, Buffer.from([0, 0, type, 0, 1]), extra])
  }
  const options = Buffer.from([0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0])

  test('are parsed', () => {
    const question = readQuestion(ask('WEB.internal', AAAA))!
    expect(question).toMatchObject({ id: 0x1234, name: 'web.internal', type: AAAA, isInternet: true, maxBytes: 512 })
    expect(readQuestion(ask('a.b', TXT, options))).toMatchObject({ hasOptions: true, maxBytes: 1232 })
  })

  test('are answered with the question repeated', () => {
    const question = readQuestion(ask('Web.internal', AAAA))!
    const answer = writeAnswer(question, { code: 0, addresses: ['fdaa::3'] }, 512)
    expect(answer.subarray(0, 12).toString('hex')).toBe('123485800001000100000000')
    expect(answer.toString('latin1')).toContain('\x03Web\x08internal\0')
    expect(answer.subarray(-18).toString('hex')).toBe(`0010fdaa${'0'.repeat(26)}03`.slice(0, 36))
  })

  test('have an SOA record when the name is unknown', () => {
    const answer = writeAnswer(readQuestion(ask('x.internal', AAAA))!, { code: 3, zone: 'internal' }, 512)
    expect([answer[3]! & 15, answer.readUInt16BE(6), answer.readUInt16BE(8)]).toEqual([3, 0, 1])
  })

  test('are truncated to the size that the client accepts', () => {
    const addresses = Array<string>(100).fill('fdaa::3')
    const question = readQuestion(ask('web.internal', AAAA))!
    const cut = writeAnswer(question, { code: 0, addresses }, question.maxBytes)
    expect(cut.length).toBeLessThan(512)
    expect(cut[2]! & 2).toBe(2)
    expect(writeAnswer(question, { code: 0, addresses }, 65_535).readUInt16BE(6)).toBe(100)
  })

  test('split long texts into strings', () => {
    const answer = writeAnswer(readQuestion(ask('x', TXT))!, { code: 0, text: 'a'.repeat(600) }, 65_535)
    expect(
      answer
        .toString('latin1')
        .match(/a+/g)!
        .map((piece) => piece.length),
    ).toEqual([255, 255, 90])
  })

  test('are ignored if they are responses or too short', () => {
    const answer = ask('web.internal', AAAA)
    answer[2]! |= 0x80
    expect(readQuestion(answer)).toBeUndefined()
    expect(readQuestion(Buffer.alloc(11))).toBeUndefined()
  })

  test('with random bytes are parsed without an error', () => {
    const bytes = fc.uint8Array({ maxLength: 600 }).map((array) => Buffer.from(array))
    const mangled = fc.tuple(bytes, fc.nat(60)).map(([noise, at]) => {
      const message = ask('web.internal', AAAA, options)
      noise.copy(message, at % message.length, 0, 4)
      return message.subarray(0, message.length - (noise.length % 20))
    })
    fc.assert(
      fc.property(fc.oneof(bytes, mangled), (message) => {
        readFrame(message)
        const question = readQuestion(message)
        if (!question) return
        const answer = writeAnswer(question, { code: 1, addresses: ['fdaa::3'], text: '', zone: 'internal' }, 512)
        expect(answer.length).toBeLessThanOrEqual(Math.max(512, 12 + question.bytes.length + 11))
        if (isReadable(question)) expect(answer.subarray(12, 12 + question.bytes.length)).toEqual(question.bytes)
      }),
      { numRuns: 2_000 },
    )
  })
})

import { spawn, spawnSync } from 'node:child_process'
import { chownSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import fc from 'fast-check'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Home, openHome } from '../../../src/drivers/host/home.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { imageStore } from '../../../src/drivers/image/store.ts'
import { makeTar, type TarEntry } from '../../support/image.ts'
import { canRunAs, drivers, removeTemporaryHome, temporaryDirectory } from '../../support/temporary-home.ts'

const directory = temporaryDirectory()
const outside = `${directory}/outside`
const nobody = 65_534
let home: Home
let number = 0

beforeAll(async () => {
  home = await openHome(`${directory}/home`, { uidBase: 300_000, registry: `${directory}/homes` })
  mkdirSync(outside)
  writeFileSync(`${outside}/secret`, 'secret')
})

afterAll(() => removeTemporaryHome(directory))

async function unpack(tar: Buffer): Promise<string> {
  const file = `${directory}/${number++}.tar`
  writeFileSync(file, tar)
  return (await imageStore({ home }).pullImage({ kind: 'tar', file })).layers[0]!
}

function expectUntouched(): void {
  expect(readdirSync(outside)).toEqual(['secret'])
  expect(readFileSync(`${outside}/secret`, 'utf8')).toBe('secret')
  expect(statSync(`${outside}/secret`).nlink).toBe(1)
}

const up = '../'.repeat(20)

test.each<[string, TarEntry[]]>([
  ['a name with ..', [{ name: `${up}${outside}/new`, content: 'x' }]],
  ['a name with .. in the middle', [{ name: 'a/../../b', content: 'x' }]],
  ['a directory with ..', [{ name: `${up}${outside}/new/`, type: 'directory' }]],
  ['a hard link with ..', [{ name: 'link', type: 'link', link: `${up}${outside}/secret` }]],
  ['a hard link to a file of the host', [{ name: 'link', type: 'link', link: '/etc/passwd' }]],
  ['a hard link to a lower layer', [{ name: 'link', type: 'link', link: 'bin/of-the-layer-below' }]],
  ['a hard link to the root', [{ name: 'link', type: 'link', link: '/' }]],
  ['a whiteout of the parent', [{ name: '.wh...' }]],
  ['a whiteout without a name', [{ name: 'a/.wh.' }]],
  ['a whiteout with ..', [{ name: `${up}.wh.etc` }]],
  ['a link as the root', [{ name: './', type: 'symlink', link: outside }]],
  [
    'a loop of links',
    [
      { name: 'a', type: 'symlink', link: 'b' },
      { name: 'b', type: 'symlink', link: 'a' },
      { name: 'a/x', content: 'x' },
    ],
  ],
  ['an extended name with ..', [{ name: 'x', extended: { path: `a/${up}${outside}/new` }, content: 'x' }]],
  ['an extended name with a zero byte', [{ name: 'x', extended: { path: 'a\0b' } }]],
  ['a name that is too long', [{ name: 'x', extended: { path: 'a/'.repeat(400_000) } }]],
  ['a path component that is too long', [{ name: 'n'.repeat(300) }]],
  ['a size that is not a number', [{ name: 'x', extended: { size: 'many' } }]],
  ['a size larger than the content', [{ name: 'x', size: 1_000_000, content: 'x' }]],
])('refuses %s', async (_, entries) => {
  await expect(unpack(makeTar([{ name: 'first', content: 'x' }, ...entries]))).rejects.toMatchObject({
    code: 'damaged',
  })
  expectUntouched()
})

test.each<[string, TarEntry[], string]>([
  ['an absolute name', [{ name: `${outside}/new`, content: 'in' }], `${outside}/new`],
  [
    'a link to a directory of the host',
    [
      { name: 'link', type: 'symlink', link: outside },
      { name: `.${outside}/`, type: 'directory' },
      { name: 'link/new', content: 'in' },
    ],
    `${outside}/new`,
  ],
  [
    'a link with many ..',
    [
      { name: 'usr/', type: 'directory' },
      { name: 'link', type: 'symlink', link: `${up}usr` },
      { name: 'link/new', content: 'in' },
    ],
    '/usr/new',
  ],
  [
    'a file that replaces a link',
    [
      { name: 'link', type: 'symlink', link: `${outside}/secret` },
      { name: 'link', content: 'in' },
    ],
    '/link',
  ],
  [
    'a directory that replaces a link',
    [
      { name: 'link', type: 'symlink', link: outside },
      { name: 'link/', type: 'directory' },
      { name: 'link/new', content: 'in' },
    ],
    '/link/new',
  ],
  [
    'a hard link to a link',
    [
      { name: 'link', type: 'symlink', link: `${outside}/secret` },
      { name: 'hard', type: 'link', link: 'link' },
      { name: 'hard', content: 'in' },
    ],
    '/hard',
  ],
])('keeps %s inside', async (_, entries, place) => {
  expect(readFileSync(`${await unpack(makeTar(entries))}${place}`, 'utf8')).toBe('in')
  expectUntouched()
})

test('refuses to create files through a link that leads out of the layer', async () => {
  const entries: TarEntry[] = [
    { name: 'link', type: 'symlink', link: outside },
    { name: 'link/new', content: 'x' },
  ]
  await expect(unpack(makeTar(entries))).rejects.toMatchObject({ code: 'damaged' })
  expectUntouched()
})

test('leaves no files of a refused layer', async () => {
  await expect(unpack(makeTar([{ name: 'a/b/c', content: 'x' }, { name: '../x' }]))).rejects.toThrow()
  expect(readdirSync(`${home.path}/image/layer`).filter((name) => name.startsWith('.'))).toEqual([])
})

test('unpacks or refuses any bytes, and touches nothing outside', async () => {
  const good = makeTar([
    { name: 'a/b', content: 'x'.repeat(600), extended: { mtime: '1.5' } },
    { name: 'l', type: 'symlink', link: '/a' },
    { name: 'l/c', content: 'y' },
    { name: 'a/.wh.x' },
    { name: 'h', type: 'link', link: 'a/b' },
  ])
  const change = fc.record({ at: fc.nat(good.length - 1), byte: fc.nat(255), sum: fc.boolean() })
  await fc.assert(
    fc.asyncProperty(fc.array(change, { minLength: 1, maxLength: 6 }), fc.nat(good.length), async (changes, cut) => {
      const tar = Buffer.from(cut % 4 === 0 ? good.subarray(0, cut) : good)
      for (const { at, byte, sum } of changes) {
        if (at >= tar.length) continue
        tar[at] = byte
        if (sum) repairSum(tar, at - (at % 512))
      }
      const result = unpackBytes(tar)
      expect([0, 20, 21, 22]).toContain(result.status)
      expect(result.stderr.length).toBeLessThan(1000)
    }),
    { numRuns: 120 },
  )
  expectUntouched()
})

function repairSum(tar: Buffer, start: number): void {
  if (start + 512 > tar.length) return
  const block = tar.subarray(start, start + 512)
  block.fill(' ', 148, 156)
  block.write(
    `${block
      .reduce((total, byte) => total + byte, 0)
      .toString(8)
      .padStart(6, '0')}\0 `,
    148,
  )
}

/** Runs the unpacker alone, which is faster. */
function unpackBytes(tar: Buffer) {
  const place = `${directory}/bytes`
  rmSync(place, { recursive: true, force: true })
  mkdirSync(place)
  const args = [`${drivers}image/unpack.pl`, process.arch, place, '1000', '1000000']
  return spawnSync('perl', args, { input: tar, encoding: 'utf8' })
}

test('exits when its input ends', async () => {
  const place = `${directory}/ended`
  mkdirSync(place)
  const child = spawn('perl', [`${drivers}image/unpack.pl`, process.arch, place, '1000', '1000000'])
  const ended = new Promise((resolve) => child.once('close', resolve))
  child.stdin.write(makeTar([{ name: 'x', content: 'x'.repeat(5000) }]).subarray(0, 2000))
  child.stdin.destroy()
  expect(await ended).toBe(20)
})

test.runIf(isRoot() && canRunAs(nobody))('works for an ordinary user, who can delete the files again', async () => {
  const place = `${directory}/ordinary`
  mkdirSync(place)
  chownSync(place, nobody, nobody)
  const file = `${directory}/ordinary.tar`
  const entries: TarEntry[] = [
    { name: 'closed/', type: 'directory', mode: 0o500, uid: 5 },
    { name: 'closed/file', content: 'x', uid: 5, mode: 0o4000 },
    { name: 'closed/.wh.gone' },
    { name: 'closed/.wh..wh..opq' },
    { name: 'open/.wh.gone' },
    { name: 'open/file' },
    { name: 'out', type: 'symlink', link: outside },
    { name: 'tmp/x' },
  ]
  writeFileSync(file, makeTar(entries))
  const program = `
    import { openHome } from '${drivers}host/home.ts'
    import { imageStore } from '${drivers}image/store.ts'
    const home = await openHome('${place}/home', { uidBase: 300000 })
    const store = imageStore({ home })
    const image = await store.pullImage({ kind: 'tar', file: '${file}' })
    const { lstatSync, mkdirSync, readdirSync, writeFileSync } = await import('node:fs')
    const { execFileSync } = await import('node:child_process')
    for (const part of ['below/closed', 'below/open', 'merged']) mkdirSync('${place}/' + part, { recursive: true })
    for (const name of ['gone', 'old']) for (const part of ['closed', 'open']) writeFileSync('${place}/below/' + part + '/' + name, '')
    const script = 'mount -t overlay overlay -o "$1" ${place}/merged && cd ${place}/merged && ls closed open && stat -c %a tmp'
    const options = 'userxattr,lowerdir=' + image.layers[0] + ':${place}/below'
    console.log(execFileSync('unshare', ['-rm', 'sh', '-ec', script, 'sh', options], { encoding: 'utf8' }).trim())
    console.log(lstatSync(image.layers[0] + '/open/gone').isCharacterDevice(), readdirSync(image.layers[0] + '/closed').length)
    console.log(JSON.stringify(await store.collectImages(new Set())))`
  const args = ['--disable-warning=ExperimentalWarning', '--input-type=module', '-e', program]
  const result = spawnSync(process.execPath, args, { uid: nobody, gid: nobody, cwd: '/', encoding: 'utf8' })
  expect(result.stdout + result.stderr).toBe(
    'closed:\nfile\n\nopen:\nfile\nold\n1777\ntrue 1\n{"images":1,"layers":1,"bytes":1}\n',
  )
  expect(existsSync(`${place}/home/image/layer`)).toBe(true)
})

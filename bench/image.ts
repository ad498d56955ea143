// Pulling an image from a registry on loopback, compared with skopeo and tar.
import { spawnSync } from 'node:child_process'
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Home, openHome } from '../src/drivers/host/home.ts'
import type { ImageStore } from '../src/drivers/image/driver.ts'
import { imageStore } from '../src/drivers/image/store.ts'
import { parseImageReference } from '../src/model/image.ts'
import { assemble, layerOf } from '../test/support/image.ts'
import { loopbackPolicy } from '../test/support/outbound.ts'
import { pushBlobs, pushManifest, startRegistry } from '../test/support/registry.ts'
import { settle } from './cluster.ts'
import { group } from './framework.ts'
import type { Scope } from './scope.ts'
import { inTurn } from './turn.ts'

interface Fixture {
  directory: string
  /** `host/repository`. */
  name: string
  megabytes: string
  openStore(): Promise<{ home: Home; store: ImageStore }>
}

const rounds = 5
// The libraries and text files of a system compress to about a third of this.
const plainBytes = 180e6

export const images = [
  group<Fixture>({
    setUp,
    benchmarks: [
      {
        name: 'image-pull',
        title: 'time to pull and unpack an image of about 60 MB',
        target: { atMost: 1.3 },
        async run(fixture) {
          const ratio = await inTurn(
            rounds,
            () => timePull(fixture),
            () => timeByHand(fixture),
          )
          const times = `${ratio.measured.toFixed(2)} and ${ratio.reference.toFixed(2)} s for ${fixture.megabytes}`
          const reference = 'skopeo copy to an OCI layout, then tar -x'
          return {
            value: ratio.median,
            unit: '×',
            reference,
            note: `${times}; ${ratio.note}`,
            disturbed: ratio.disturbed,
          }
        },
      },
      {
        name: 'image-again',
        title: 'time to pull an image that is already present',
        target: { atMost: 50 },
        async run(fixture) {
          const { home, store } = await fixture.openStore()
          const reference = parseImageReference(fixture.name, false)
          const { layers } = await store.pullImage(reference)
          const before = layers.map((layer) => statSync(layer).ino)
          const started = performance.now()
          await store.pullImage(reference)
          const value = performance.now() - started
          if (layers.some((layer, index) => statSync(layer).ino !== before[index]))
            throw new Error('a layer was unpacked again')
          rmSync(home.path, { recursive: true })
          return { value, unit: 'ms', reference: '', note: 'no layer is fetched or unpacked' }
        },
      },
    ],
  }),
]

async function setUp(scope: Scope): Promise<Fixture> {
  const directory = mkdtempSync(join(tmpdir(), 'berth-image-'))
  scope.defer(() => rmSync(directory, { recursive: true, force: true }))
  // The users of a home must be able to traverse its parent.
  chmodSync(directory, 0o711)
  const registry = await startRegistry()
  scope.defer(() => registry.close())
  const tar = makeSystemTar(directory)
  const image = assemble([layerOf(tar.content, 'gzip')])
  await pushBlobs(registry, 'bench', image)
  await pushManifest(registry, 'bench', 'latest', image.manifest)
  const packed = image.layers[0]!.content.length
  let homes = 0
  return {
    directory,
    name: `${registry.host}/bench`,
    megabytes: `${Math.round(packed / 1e6)} MB, unpacked ${Math.round(tar.content.length / 1e6)} MB in ${tar.files} files`,
    async openStore() {
      const home = await openHome(`${directory}/home-${homes++}`, { uidBase: 300_000, registry: `${directory}/homes` })
      return { home, store: imageStore({ home, policy: loopbackPolicy() }) }
    },
  }
}

/** Packs files of this system, so that sizes and compression are realistic. */
function makeSystemTar(directory: string): { content: Buffer; files: number } {
  const script = `find /usr/lib /usr/share -xdev -type f -size -4M -printf '%s %p\\n' | sort -k2 |
    awk -v most=${plainBytes} '{ total += $1 } total < most { sub(/^[0-9]+ /, ""); print }' >files &&
    tar -cf system.tar --files-from files 2>/dev/null && wc -l <files`
  const { stdout, status } = spawnSync('sh', ['-c', script], { cwd: directory, encoding: 'utf8' })
  if (status !== 0) throw new Error('tar failed')
  const content = readFileSync(`${directory}/system.tar`)
  rmSync(`${directory}/system.tar`)
  return { content, files: Number(stdout) }
}

async function timePull({ name, openStore }: Fixture): Promise<number> {
  const { home, store } = await openStore()
  await settle({ home: home.path })
  const started = performance.now()
  await store.pullImage(parseImageReference(name, false))
  const seconds = (performance.now() - started) / 1000
  rmSync(home.path, { recursive: true })
  return seconds
}

async function timeByHand({ name, directory }: Fixture): Promise<number> {
  const place = `${directory}/by-hand`
  mkdirSync(`${place}/root`, { recursive: true })
  await settle({ home: place })
  const started = performance.now()
  const script = `skopeo --insecure-policy copy -q --src-tls-verify=false docker://${name} oci:layout &&
    layer=$(ls -S layout/blobs/sha256 | head -n 1) && tar -xf layout/blobs/sha256/$layer -C root`
  const { status } = spawnSync('sh', ['-c', script], { cwd: place })
  if (status !== 0) throw new Error('skopeo or tar failed')
  const seconds = (performance.now() - started) / 1000
  rmSync(place, { recursive: true })
  return seconds
}

// Builds images, so that tests need no network and can build broken ones.
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { gzipSync, zstdCompressSync } from 'node:zlib'

export interface TarEntry {
  name: string
  type?: 'file' | 'directory' | 'symlink' | 'link' | 'character' | 'block' | 'fifo'
  content?: string | Buffer
  /** The target of a link. */
  link?: string
  mode?: number
  uid?: number
  gid?: number
  mtime?: number
  /** Additional pax header fields, such as `SCHILY.xattr.user.a`. */
  extended?: Record<string, string | Buffer>
  /** The size in the header, instead of the length of the content. */
  size?: number
}

export interface LayerSpec {
  files: TarEntry[]
  compression?: 'gzip' | 'zstd' | 'none'
}

export interface ImageSpec {
  layers: LayerSpec[]
  /** The image configuration in Docker's spelling: `Entrypoint`, `Cmd`, `Env`, `User`, `WorkingDir`, … */
  config?: Record<string, unknown>
  architecture?: string
}

export interface Blob {
  digest: string
  content: Buffer
  mediaType: string
}

export interface MadeImage {
  manifest: Blob
  config: Blob
  layers: (Blob & { diffId: string; tar: Buffer })[]
}

export const architecture = process.arch === 'arm64' ? 'arm64' : 'amd64'
const types = { file: '0', link: '1', symlink: '2', character: '3', block: '4', directory: '5', fifo: '6' }

export function digestOf(content: Buffer): string {
  return `sha256:${createHash('sha256').update(content).digest('hex')}`
}

export function makeTar(entries: TarEntry[]): Buffer {
  return Buffer.concat([...entries.flatMap(entryParts), Buffer.alloc(1024)])
}

function entryParts(entry: TarEntry): Buffer[] {
  const content = Buffer.from(entry.content ?? '')
  const long = Buffer.byteLength(entry.name) > 100 ? { path: entry.name } : {}
  const longLink = Buffer.byteLength(entry.link ?? '') > 100 ? { linkpath: entry.link! } : {}
  const extended = Object.entries({ ...long, ...longLink, ...entry.extended })
  const parts = [header(entry, types[entry.type ?? 'file'], entry.size ?? content.length), padded(content)]
  if (extended.length === 0) return parts
  const text = Buffer.concat(extended.map(([key, value]) => extendedLine(key, Buffer.from(value))))
  return [header({ name: 'extended' }, 'x', text.length), padded(text), ...parts]
}

function extendedLine(key: string, value: Buffer): Buffer {
  const rest = key.length + value.length + 3
  let length = rest + String(rest).length
  if (String(length).length + rest !== length) length = rest + String(length).length
  return Buffer.concat([Buffer.from(`${length} ${key}=`), value, Buffer.from('\n')])
}

function header(entry: TarEntry, type: string, size: number): Buffer {
  const block = Buffer.alloc(512)
  block.write(entry.name.slice(0, 100), 0)
  const isDirectory = entry.type === 'directory'
  writeNumber(block, 100, 8, entry.mode ?? (isDirectory ? 0o755 : 0o644))
  writeNumber(block, 108, 8, entry.uid ?? 0)
  writeNumber(block, 116, 8, entry.gid ?? 0)
  writeNumber(block, 124, 12, size)
  writeNumber(block, 136, 12, entry.mtime ?? 1_700_000_000)
  block.write(type, 156)
  block.write((entry.link ?? '').slice(0, 100), 157)
  block.write('ustar\x0000', 257)
  block.fill(' ', 148, 156)
  const sum = block.reduce((total, byte) => total + byte, 0)
  block.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148)
  return block
}

/** Writes an octal number, or a binary one when the field is too short. */
function writeNumber(block: Buffer, start: number, length: number, value: number): void {
  const text = value.toString(8).padStart(length - 1, '0')
  if (text.length < length) {
    block.write(text, start)
    return
  }
  block[start] = 0x80
  let left = BigInt(value)
  for (let place = start + length - 1; place > start; place--, left /= 256n) block[place] = Number(left % 256n)
}

function padded(content: Buffer): Buffer {
  return Buffer.concat([content, Buffer.alloc((512 - (content.length % 512)) % 512)])
}

export function pack(tar: Buffer, compression: LayerSpec['compression'] = 'gzip'): Buffer {
  if (compression === 'gzip') return gzipSync(tar, { level: 1 })
  return compression === 'zstd' ? zstdCompressSync(tar) : tar
}

export function makeLayer({ files, compression = 'gzip' }: LayerSpec): MadeImage['layers'][number] {
  return layerOf(makeTar(files), compression)
}

export function layerOf(tar: Buffer, compression: LayerSpec['compression'] = 'gzip'): MadeImage['layers'][number] {
  const content = pack(tar, compression)
  const mediaType = `application/vnd.oci.image.layer.v1.tar${compression === 'none' ? '' : `+${compression}`}`
  return { digest: digestOf(content), content, mediaType, diffId: digestOf(tar), tar }
}

export function makeImage({ layers, config = {}, architecture: wanted = architecture }: ImageSpec): MadeImage {
  return assemble(layers.map(makeLayer), config, wanted)
}

export function assemble(
  layers: MadeImage['layers'],
  config: Record<string, unknown> = {},
  wanted = architecture,
): MadeImage {
  const rootfs = { type: 'layers', diff_ids: layers.map(({ diffId }) => diffId) }
  const described = jsonBlob(
    { architecture: wanted, os: 'linux', config, rootfs },
    'application/vnd.oci.image.config.v1+json',
  )
  const type = 'application/vnd.oci.image.manifest.v1+json'
  const content = {
    schemaVersion: 2,
    mediaType: type,
    config: descriptorOf(described),
    layers: layers.map(descriptorOf),
  }
  return { manifest: jsonBlob(content, type), config: described, layers }
}

export function makeIndex(entries: { image: MadeImage; platform: Record<string, string> }[]): Blob {
  const type = 'application/vnd.oci.image.index.v1+json'
  const manifests = entries.map(({ image, platform }) => ({ ...descriptorOf(image.manifest), platform }))
  return jsonBlob({ schemaVersion: 2, mediaType: type, manifests }, type)
}

export function jsonBlob(value: unknown, mediaType: string): Blob {
  const content = Buffer.from(JSON.stringify(value))
  return { digest: digestOf(content), content, mediaType }
}

export function descriptorOf({ digest, content, mediaType }: Blob) {
  return { mediaType, digest, size: content.length }
}

const applets = ['sh', 'ls', 'cat', 'echo', 'sleep', 'true', 'false', 'env', 'id', 'ps', 'kill', 'mkdir', 'rm', 'touch']
const furtherApplets = [
  'httpd',
  'nc',
  'wget',
  'ip',
  'ping',
  'stat',
  'head',
  'tail',
  'printf',
  'test',
  'date',
  'seq',
  'dd',
  'df',
  'mount',
  'hostname',
  'nslookup',
]

/** The smallest usable image: busybox with a link for each applet, users and a writable /tmp. */
export function busyboxImage(config: Record<string, unknown> = {}): ImageSpec {
  const program = ['/usr/bin/busybox', '/bin/busybox'].find(existsSync)!
  const directories = [
    '',
    'bin',
    'etc',
    'root',
    'tmp',
    'var',
    'www',
    'data',
    'proc',
    'dev',
    'sys',
    'run',
    'usr',
    'home',
  ]
  return {
    layers: [
      {
        files: [
          ...directories.map((name) => ({
            name: `${name || '.'}/`,
            type: 'directory' as const,
            mode: name === 'tmp' ? 0o1777 : 0o755,
          })),
          { name: 'bin/busybox', content: readFileSync(program), mode: 0o755 },
          ...librariesOf(program),
          ...[...applets, ...furtherApplets].map((name) => ({
            name: `bin/${name}`,
            type: 'symlink' as const,
            link: 'busybox',
          })),
          { name: 'etc/passwd', content: 'root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000:web:/home:/bin/sh\n' },
          { name: 'etc/group', content: 'root:x:0:\nweb:x:1000:\n' },
        ],
      },
    ],
    config: { Env: ['PATH=/bin'], Cmd: ['sh'], ...config },
  }
}

/** Copies a program of this host with its libraries into an image. */
export function programLayer(program: string): LayerSpec {
  const file = { name: `bin/${basename(program)}`, content: readFileSync(program), mode: 0o755 }
  return { files: [file, ...librariesOf(program)] }
}

/** A static busybox needs no libraries; Debian's other package needs the loader. */
function librariesOf(program: string): TarEntry[] {
  const text = execFileSync('sh', ['-c', `ldd ${program} 2>/dev/null || true`], { encoding: 'utf8' })
  const paths = [...text.matchAll(/(\/\S+) \(0x/g)].map((match) => match[1]!)
  return paths.map((path) => ({ name: path.slice(1), content: readFileSync(path), mode: 0o755 }))
}

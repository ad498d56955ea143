// A PostgreSQL server that a tenant has taken over: it answers a base backup with any archive.
import { createServer, type Server, type Socket } from 'node:net'

export interface Member {
  name: string
  content?: string
  /** Makes the member a symbolic link. */
  link?: string
}

/** Listens on a Unix socket until it is closed. */
export async function listenAsServer(path: string, members: Member[], archive = 'base.tar'): Promise<Server> {
  const server = createServer((socket) => serve(socket, members, archive))
  await new Promise<void>((resolve) => server.listen(path, resolve))
  return server
}

function serve(socket: Socket, members: Member[], archive: string): void {
  let buffer = Buffer.alloc(0)
  let hasStarted = false
  socket.on('error', () => undefined)
  socket.on('data', (chunk) => {
    buffer = Buffer.concat([buffer, chunk])
    for (;;) {
      const prefix = hasStarted ? 1 : 0
      if (buffer.length < prefix + 4) return
      const length = prefix + buffer.readInt32BE(prefix)
      if (buffer.length < length) return
      const message = buffer.subarray(prefix + 4, length)
      const type = hasStarted ? String.fromCharCode(buffer[0]!) : ''
      buffer = buffer.subarray(length)
      if (type === 'X') return socket.end()
      socket.write(hasStarted ? answer(message.toString(), members, archive) : greeting)
      hasStarted = true
    }
  })
}

function packet(type: string, ...parts: (Buffer | string)[]): Buffer {
  const body = Buffer.concat(parts.map((part) => (typeof part === 'string' ? Buffer.from(part) : part)))
  const head = Buffer.alloc(5)
  head.write(type)
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}

const int16 = (value: number) => {
  const bytes = Buffer.alloc(2)
  bytes.writeInt16BE(value)
  return bytes
}
const int32 = (value: number) => {
  const bytes = Buffer.alloc(4)
  bytes.writeInt32BE(value)
  return bytes
}

const ready = packet('Z', 'I')
const complete = packet('C', 'SELECT\0')
const greeting = Buffer.concat([
  packet('R', int32(0)),
  ...Object.entries({ server_version: '17.5', integer_datetimes: 'on', client_encoding: 'UTF8' }).map(([name, value]) =>
    packet('S', `${name}\0${value}\0`),
  ),
  ready,
])

function row(...values: (string | null)[]): Buffer {
  const columns = values.map((_, index) =>
    Buffer.concat([Buffer.from(`c${index}\0`), int32(0), int16(0), int32(25), int16(-1), int32(-1), int16(0)]),
  )
  const fields = values.map((value) =>
    value === null ? int32(-1) : Buffer.concat([int32(Buffer.byteLength(value)), Buffer.from(value)]),
  )
  return Buffer.concat([
    packet('T', int16(values.length), ...columns),
    packet('D', int16(values.length), ...fields),
    complete,
  ])
}

function answer(query: string, members: Member[], archive: string): Buffer {
  if (query.includes('data_directory_mode')) return Buffer.concat([row('0700'), ready])
  if (query.includes('wal_segment_size')) return Buffer.concat([row('16MB'), ready])
  if (query.startsWith('IDENTIFY_SYSTEM'))
    return Buffer.concat([row('7000000000000000000', '1', '0/2000000', null), ready])
  if (!query.startsWith('BASE_BACKUP')) return Buffer.concat([complete, ready])
  const tar = Buffer.concat([...members.map(member), Buffer.alloc(1024)])
  return Buffer.concat([
    row('0/2000028', '1'),
    row(null, null, '1'),
    packet('H', Buffer.from([0]), int16(0)),
    packet('d', 'n', `${archive}\0\0`),
    packet('d', 'd', tar),
    packet('d', 'm'),
    packet('d', 'd', '{ "PostgreSQL-Backup-Manifest-Version": 2, "Files": [], "WAL-Ranges": [] }'),
    packet('c'),
    row('0/2000100', '1'),
    complete,
    ready,
  ])
}

/** One member of a tar archive. */
function member({ name, content = '', link }: Member): Buffer {
  const header = Buffer.alloc(512)
  const put = (at: number, text: string) => header.write(text, at, 'latin1')
  put(0, name)
  put(100, '0000600\0')
  put(108, '0000000\0')
  put(116, '0000000\0')
  put(124, `${content.length.toString(8).padStart(11, '0')}\0`)
  put(136, '00000000000\0')
  put(148, '        ')
  put(156, link === undefined ? '0' : '2')
  put(157, link ?? '')
  put(257, 'ustar\x0000')
  const sum = header.reduce((total, byte) => total + byte, 0)
  put(148, `${sum.toString(8).padStart(6, '0')}\0 `)
  const body = Buffer.alloc(Math.ceil(content.length / 512) * 512)
  body.write(content)
  return Buffer.concat([header, body])
}

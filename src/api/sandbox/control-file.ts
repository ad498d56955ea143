// Operations of the control channel on files and ports. Each sends one JSON text like the corresponding HTTP operation,
// followed by the bytes of the file for `fs.read`, and is then complete. `fs.write` takes binary messages until it has
// received `size` bytes or, when no size is given, a message that consists of the single byte 4.
import { PassThrough } from 'node:stream'
import type { RawData } from 'ws'
import {
  chmodFile,
  chownFile,
  copyFile,
  deleteFile,
  type FileLocation,
  listFiles,
  openFile,
  renameFile,
  writeFile,
} from '../../live/sandbox/file.ts'
import { dialSandbox } from '../../live/sandbox/proxy.ts'
import { wake } from '../../live/sandbox/sandbox.ts'
import { badRequest } from '../../model/errors.ts'
import { renderMode, renderTime, requestedRange } from '../../model/sandbox/file.ts'
import type { ControlCall, ControlOperation, ControlRun } from './control-operation.ts'
import { bytesOf } from './exec-socket.ts'
import { fileView } from './file.ts'
import { connectedTo, joinConnection } from './proxy.ts'

const defaultDirectory = '/home/sprite'
const endByte = 4
const maxUnsentBytes = 1024 * 1024

function place({ args }: ControlCall): FileLocation {
  return { path: textOf(args, 'path'), workingDir: args.get('workingDir') ?? defaultDirectory }
}

function textOf(args: URLSearchParams, name: string): string {
  const value = args.get(name)
  if (value === null) throw badRequest(`${name} is required`)
  return value
}

const isSet = (args: URLSearchParams, name: string) => ['true', '1'].includes(args.get(name) ?? '')
const optional = <K extends string>(args: URLSearchParams, name: K) => {
  const value = args.get(name)
  return (value === null ? {} : { [name]: value }) as { [key in K]?: string }
}

/** For operations that take no input; they finish even when the client disconnects. */
const ignoreClient: ControlRun = { message: () => {}, leave: () => {} }

function answering(run: (call: ControlCall) => Promise<object>): ControlOperation {
  return async (call) => {
    run(call).then((answer) => {
      call.socket.send(JSON.stringify(answer))
      call.complete({ exitCode: 0 })
    }, call.fail)
    return ignoreClient
  }
}

export const fileOperations: Record<string, ControlOperation> = {
  'fs.read': readOperation,
  'fs.write': writeOperation,
  'fs.list': answering(async (call) => {
    const options = { recursive: isSet(call.args, 'recursive'), ...optional(call.args, 'pattern') }
    const listing = await listFiles(call.ctx, call.sandbox.name, place(call), options)
    const entries: object[] = []
    for await (const entry of listing.entries) entries.push(fileView(entry))
    return { path: listing.path, entries, count: entries.length, ...(listing.isCut() ? { truncated: true } : {}) }
  }),
  'fs.delete': answering((call) =>
    deleteFile(call.ctx, call.sandbox.name, place(call), { recursive: isSet(call.args, 'recursive') }),
  ),
  'fs.rename': answering((call) => renameFile(call.ctx, call.sandbox.name, twoPlaces(call))),
  'fs.copy': answering((call) => {
    const flags = { recursive: isSet(call.args, 'recursive'), preserveAttrs: isSet(call.args, 'preserveAttrs') }
    return copyFile(call.ctx, call.sandbox.name, { ...twoPlaces(call), ...flags })
  }),
  'fs.chmod': answering((call) => {
    const command = { ...place(call), mode: textOf(call.args, 'mode'), recursive: isSet(call.args, 'recursive') }
    return chmodFile(call.ctx, call.sandbox.name, command)
  }),
  'fs.chown': answering((call) => {
    const owners = { ...optional(call.args, 'uid'), ...optional(call.args, 'gid') }
    return chownFile(call.ctx, call.sandbox.name, {
      ...place(call),
      ...owners,
      recursive: isSet(call.args, 'recursive'),
    })
  }),
  proxy: proxyOperation,
}

function twoPlaces({ args }: ControlCall) {
  const workingDir = args.get('workingDir') ?? defaultDirectory
  return { source: textOf(args, 'source'), dest: textOf(args, 'dest'), workingDir }
}

async function readOperation(call: ControlCall): Promise<ControlRun> {
  const { ctx, sandbox, args, socket } = call
  const [start, end] = ['start', 'end'].map((name) => numberOf(args, name))
  const requested = { ...(start === undefined ? {} : { start }), ...(end === undefined ? {} : { end }) }
  const file = await openFile(ctx, sandbox.name, place(call), (size) => requestedRange(size, requested))
  const send = async () => {
    const { size, range, mode, modifiedAt } = file
    const length = range?.length ?? size
    socket.send(JSON.stringify({ size: length, mode: renderMode(mode), modTime: renderTime(modifiedAt) }))
    for await (const piece of file.bytes()) {
      await new Promise<void>((resolve) => {
        socket.send(piece, () => resolve())
        if (socket.bufferedAmount < maxUnsentBytes) resolve()
      })
    }
    call.complete({ exitCode: 0 })
  }
  send()
    .catch(call.fail)
    .finally(() => file.close())
  return { message: () => {}, leave: () => file.close() }
}

function numberOf(args: URLSearchParams, name: string): number | undefined {
  const text = args.get(name)
  if (text === null) return undefined
  if (!/^\d{1,15}$/.test(text)) throw badRequest(`${name} must be a number`)
  return Number(text)
}

async function writeOperation(call: ControlCall): Promise<ControlRun> {
  const { ctx, sandbox, args, socket } = call
  const size = numberOf(args, 'size')
  const body = new PassThrough()
  const options = { ...optional(args, 'mode'), mkdirParents: args.get('mkdirParents') !== 'false' }
  writeFile(ctx, sandbox.name, place(call), body, options).then(
    ({ isNew: _isNew, ...written }) => {
      socket.send(JSON.stringify(written))
      call.complete({ exitCode: 0 })
    },
    (error) => {
      body.destroy()
      call.fail(error)
    },
  )
  body.on('drain', () => socket.resume()).once('close', () => socket.resume())
  let missingBytes = size ?? Number.POSITIVE_INFINITY
  if (missingBytes === 0) body.end()
  return {
    message(data: RawData, isBinary: boolean) {
      if (!isBinary || body.writableEnded || body.destroyed) return
      const bytes = bytesOf(data)
      const isEnd = size === undefined && bytes.length === 1 && bytes[0] === endByte
      missingBytes -= bytes.length
      if (!isEnd && !body.write(bytes)) socket.pause()
      if (isEnd || missingBytes <= 0) body.end()
    },
    leave: () => body.destroy(new Error('the client disconnected')),
  }
}

async function proxyOperation({ ctx, sandbox, args, socket, complete, fail }: ControlCall): Promise<ControlRun> {
  const target = { host: args.get('host') ?? '', port: numberOf(args, 'port') ?? 0 }
  await wake(ctx, sandbox)
  const connection = await dialSandbox(ctx, sandbox, target.host, target.port)
  socket.send(JSON.stringify(connectedTo(target)))
  return joinConnection(socket, connection, (error) => (error ? fail(error) : complete({ exitCode: 0 })))
}

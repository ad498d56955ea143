import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { posix } from 'node:path'
import { type TObject, Type } from 'typebox'
import {
  chmodFile,
  chownFile,
  copyFile,
  deleteFile,
  type FileListing,
  listFiles,
  type OpenFile,
  openFile,
  renameFile,
  writeFile,
} from '../../live/sandbox/file.ts'
import {
  ChmodFile,
  ChownFile,
  CopyFile,
  type FileEntry,
  RenameFile,
  renderMode,
  renderTime,
  requestedRange,
} from '../../model/sandbox/file.ts'
import { readOnly } from '../error-text.ts'
import { Answer, type RawBody, type Route, route, StreamAnswer } from '../http/route.ts'
import { ByName, sandboxAbsent } from './sandbox.ts'

/** A boolean query parameter, in the spellings of existing clients. */
const Flag = (description: string) =>
  Type.Optional(Type.Enum(['true', 'false', '1', '0'], { description, refusal: 'a flag must be true or false' }))
const isSet = (flag: string | undefined) => flag === 'true' || flag === '1'

const place = {
  path: Type.String({ description: 'Absolute, or relative to `workingDir`.' }),
  workingDir: Type.Optional(Type.String({ description: 'The base of relative paths; `/` when omitted.' })),
}
const AsRoot = Flag('Has no effect; operations always run as root in the sandbox.')

const absent = `${sandboxAbsent} Or: the file does not exist (\`code\` \`ENOENT\`).`
const wrong =
  'The path or an argument is not valid, or the operation does not apply to the file (`ENOTDIR`, `EISDIR`, `EINVAL`, …).'
const denied = 'The operation is not permitted in the sandbox (`EACCES`, `EPERM`, `EROFS`).'
const taken = 'The file exists, is in use, or is not empty (`EEXIST`, `EBUSY`, `ENOTEMPTY`).'
const full = 'The sandbox has no space left (`ENOSPC`, `EDQUOT`).'
const changeErrors = { 400: wrong, 403: `${readOnly} Or: ${denied}`, 404: absent, 409: taken, 507: full }

const FileView = Type.Object(
  {
    name: Type.String({ description: 'Bytes that are not UTF-8 are shown as U+FFFD.' }),
    path: Type.String(),
    type: Type.Enum(['file', 'directory', 'symlink', 'other']),
    size: Type.Integer(),
    mode: Type.String({ description: 'Octal, such as `0644`.' }),
    modTime: Type.String({ format: 'date-time' }),
    isDir: Type.Boolean(),
    uid: Type.Integer(),
    gid: Type.Integer(),
    target: Type.Optional(Type.String({ description: 'The target of a link.' })),
  },
  { title: 'File' },
)

const FileList = Type.Object(
  {
    path: Type.String(),
    entries: Type.Array(FileView),
    count: Type.Integer(),
    truncated: Type.Optional(Type.Boolean({ description: 'Whether the list was cut after 100,000 entries.' })),
  },
  { title: 'FileList' },
)

const counted = 'The number of files; only the first 10,000 are named.'
const Changed = (title: string, fields: TObject['properties']) =>
  Type.Object({ affected: Type.Array(Type.Object(fields)), count: Type.Integer({ description: counted }) }, { title })

export const fileRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/sandboxes/{name}/fs/read',
    id: 'readFile',
    tag: 'Files',
    summary: 'Read a file',
    description:
      'Returns the content of a regular file, with its permissions in the header `x-file-mode`. `start` and `end` or the header `Range` select a part, with status 206.',
    scope: 'read',
    params: ByName,
    query: Type.Object({
      ...place,
      start: Type.Optional(Type.Integer({ minimum: 0, description: 'The first byte.' })),
      end: Type.Optional(Type.Integer({ minimum: 0, description: 'The last byte, inclusive.' })),
    }),
    headers: Type.Object({
      range: Type.Optional(Type.String({ description: 'A range of bytes.', examples: ['bytes=0-1023'] })),
    }),
    status: 200,
    otherStatus: 206,
    responseHeaders: {
      'x-file-mode': 'The permissions, such as `0644`.',
      'last-modified': 'When the file was changed.',
      'content-range': 'With 206: the part that the body contains, and the size of the file.',
    },
    streams: true,
    contentType: 'application/octet-stream',
    errors: { 400: wrong, 403: denied, 404: absent, 416: 'The range is outside of the file.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query, headers }) =>
      fileAnswer(await openFile(ctx, params.name, query, (size) => requestedRange(size, query, headers.range))),
  }),
  route({
    method: 'PUT',
    path: '/v1/sandboxes/{name}/fs/write',
    id: 'writeFile',
    tag: 'Files',
    summary: 'Write a file',
    description:
      'The body is the content, of any length. The file is replaced atomically: readers see the old content until the write is complete.',
    scope: 'write',
    params: ByName,
    query: Type.Object({
      ...place,
      mode: Type.Optional(Type.String({ description: 'Octal; by default unchanged, or `0644` for a new file.' })),
      mkdirParents: Type.Optional(
        Type.String({
          description:
            'Missing directories are created unless this is `false`. With `false`, a file named `.keep` is still created in a new directory, whose parent must exist; this is how clients create a single directory.',
        }),
      ),
      mkdir: Type.Optional(Type.String({ description: 'Alias of `mkdirParents`.' })),
      asRoot: AsRoot,
    }),
    rawBody: true,
    status: 201,
    otherStatus: 200,
    response: Type.Object({ path: Type.String(), size: Type.Integer(), mode: Type.String() }, { title: 'WrittenFile' }),
    errors: changeErrors,
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query, body }) => {
      const { mode, mkdirParents = query.mkdir } = query
      const options = { ...(mode === undefined ? {} : { mode }), mkdirParents: mkdirParents !== 'false' }
      const { isNew, ...written } = await writeFile(ctx, params.name, query, body as unknown as RawBody, options)
      return new Answer(isNew ? 201 : 200, written)
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/{name}/fs/list',
    id: 'listFiles',
    tag: 'Files',
    summary: 'List a directory',
    description:
      'A path that is not a directory results in one entry for itself. Links in a directory are not followed.',
    scope: 'read',
    params: ByName,
    query: Type.Object({
      ...place,
      path: Type.Optional(place.path),
      recursive: Flag('Include subdirectories.'),
      pattern: Type.Optional(
        Type.String({
          maxLength: 1024,
          description: 'A pattern for names, as in `*.txt`, or with a slash for paths, as in `**/a/*`.',
        }),
      ),
    }),
    status: 200,
    streams: true,
    response: FileList,
    errors: { 400: wrong, 403: denied, 404: absent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const { path = '.', pattern } = query
      const options = { recursive: isSet(query.recursive), ...(pattern ? { pattern } : {}) }
      return listAnswer(await listFiles(ctx, params.name, { ...query, path }, options))
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/sandboxes/{name}/fs/delete',
    id: 'deleteFile',
    tag: 'Files',
    summary: 'Delete a file or directory',
    scope: 'write',
    params: ByName,
    query: Type.Object({ ...place, recursive: Flag('Delete a directory with its content.'), asRoot: AsRoot }),
    status: 200,
    response: Type.Object(
      { deleted: Type.Array(Type.String()), count: Type.Integer({ description: counted }) },
      { title: 'DeletedFiles' },
    ),
    errors: changeErrors,
    wrongTypeStatus: 400,
    run: ({ ctx, params, query }) => deleteFile(ctx, params.name, query, { recursive: isSet(query.recursive) }),
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/fs/rename',
    id: 'renameFile',
    action: 'write',
    tag: 'Files',
    summary: 'Rename a file or directory',
    scope: 'write',
    params: ByName,
    body: RenameFile,
    status: 200,
    response: Type.Object({ source: Type.String(), dest: Type.String() }, { title: 'RenamedFile' }),
    errors: changeErrors,
    wrongTypeStatus: 400,
    run: ({ ctx, params, body }) => renameFile(ctx, params.name, body),
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/fs/copy',
    id: 'copyFile',
    action: 'write',
    tag: 'Files',
    summary: 'Copy a file or directory',
    description: 'Links inside a directory are copied as links. Pipes, sockets and devices are skipped and listed.',
    scope: 'write',
    params: ByName,
    body: CopyFile,
    status: 200,
    response: Type.Object(
      {
        copied: Type.Array(Type.Object({ source: Type.String(), dest: Type.String() })),
        count: Type.Integer({ description: counted }),
        totalBytes: Type.Integer(),
        skipped: Type.Optional(Type.Array(Type.String())),
      },
      { title: 'CopiedFiles' },
    ),
    errors: changeErrors,
    wrongTypeStatus: 400,
    run: ({ ctx, params, body }) => copyFile(ctx, params.name, body),
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/fs/chmod',
    id: 'chmodFile',
    action: 'write',
    tag: 'Files',
    summary: 'Change permissions',
    scope: 'write',
    params: ByName,
    body: ChmodFile,
    status: 200,
    response: Changed('ChangedModes', { path: Type.String(), mode: Type.String() }),
    errors: changeErrors,
    wrongTypeStatus: 400,
    run: ({ ctx, params, body }) => chmodFile(ctx, params.name, body),
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/fs/chown',
    id: 'chownFile',
    action: 'write',
    tag: 'Files',
    summary: 'Change owners',
    description:
      'Names refer to users and groups in the sandbox. Links inside a directory are changed, not their targets.',
    scope: 'write',
    params: ByName,
    body: ChownFile,
    status: 200,
    response: Changed('ChangedOwners', {
      path: Type.String(),
      uid: Type.Optional(Type.Union([Type.Integer(), Type.String()])),
      gid: Type.Optional(Type.Union([Type.Integer(), Type.String()])),
    }),
    errors: changeErrors,
    wrongTypeStatus: 400,
    run: ({ ctx, params, body }) => chownFile(ctx, params.name, body),
  }),
]

function fileAnswer(file: OpenFile): StreamAnswer {
  const { size, range } = file
  const length = range?.length ?? size
  const last = range && range.from + range.length - 1
  const headers = {
    'content-type': 'application/octet-stream',
    'x-content-type-options': 'nosniff',
    'last-modified': new Date(renderTime(file.modifiedAt)).toUTCString(),
    'x-file-mode': renderMode(file.mode),
    ...(length === undefined ? {} : { 'accept-ranges': 'bytes', 'content-length': String(length) }),
    ...(range ? { 'content-range': `bytes ${range.from}-${last}/${size}` } : {}),
  }
  return new StreamAnswer(range ? 206 : 200, headers, async (out, disconnected) => {
    try {
      if (out.req.method !== 'HEAD') await sendAll(out, disconnected, file.bytes())
    } finally {
      file.close()
    }
  })
}

/** Streams the list, because it may be long. */
function listAnswer(listing: FileListing): StreamAnswer {
  return new StreamAnswer(200, { 'content-type': 'application/json; charset=utf-8' }, (out, disconnected) =>
    sendAll(out, disconnected, renderList(listing)),
  )
}

async function* renderList({ path, entries, isCut }: FileListing): AsyncGenerator<string> {
  let text = `{"path":${JSON.stringify(path)},"entries":[`
  let count = 0
  for await (const entry of entries) {
    text += (count === 0 ? '' : ',') + JSON.stringify(fileView(entry))
    count += 1
    if (text.length < 65_536) continue
    yield text
    text = ''
  }
  yield `${text}],"count":${count}${isCut() ? ',"truncated":true' : ''}}`
}

export function fileView(entry: FileEntry) {
  return {
    name: posix.basename(entry.path) || '/',
    path: entry.path,
    type: entry.kind,
    size: entry.size,
    mode: renderMode(entry.mode),
    modTime: renderTime(entry.modifiedAt),
    isDir: entry.kind === 'directory',
    uid: entry.uid,
    gid: entry.gid,
    ...(entry.kind === 'symlink' ? { target: entry.target } : {}),
  }
}

async function sendAll(
  out: ServerResponse,
  disconnected: AbortSignal,
  pieces: AsyncIterable<Buffer | string>,
): Promise<void> {
  for await (const piece of pieces) {
    if (!out.write(piece)) await once(out, 'drain', { signal: disconnected })
  }
}

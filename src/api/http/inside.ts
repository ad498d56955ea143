// The API that a sandbox can call about itself, over a Unix socket inside it. Requests are rewritten to the public path
// and handled by the same server with an ordinary token, so that authorization has a single implementation.
import { randomUUID } from 'node:crypto'
import type { RequestListener, ServerResponse } from 'node:http'
import type { FastifyInstance } from 'fastify'
import { notFound } from '../../model/errors.ts'
import { commonHeaders } from './options.ts'
import { problemBody } from './problem.ts'

export interface SandboxIdentity {
  name: string
  /** A token that is valid for this sandbox only. */
  token: string
}

const allowedPath = /^\/v1\/(?:services|checkpoints?|tasks)(?=[/?]|$)/
const restorePath = /^\/v1\/checkpoints\/[^/?]+\/restore(?=\?|$)/

export function answerInside(server: FastifyInstance, { name, token }: SandboxIdentity): RequestListener {
  return (request, response) => {
    const path = request.url ?? '/'
    if (!allowedPath.test(path)) return refuse(response, path)
    request.url = publicPath(name, path)
    // Credentials sent by programs in the sandbox are ignored.
    request.headers.authorization = `Bearer ${token}`
    server.routing(request, response)
  }
}

/** A restore ends the process that asks for it, so from inside it is answered before it begins. */
function publicPath(name: string, path: string): string {
  const restore = restorePath.exec(path)
  const target = restore ? `${restore[0]}?wait=false` : path
  return target.replace(/^\/v1\//, `/v1/sandboxes/${name}/`)
}

function refuse(response: ServerResponse, path: string): void {
  const body = problemBody('sandbox', notFound(`no such path: ${path.split('?')[0]}`))
  response
    .writeHead(404, { ...commonHeaders('sandbox', randomUUID()), 'content-type': 'application/json' })
    .end(JSON.stringify(body))
}

// What a sandbox can ask about itself, on a socket inside it. It is answered as it is outside, by the same server and
// with a token like any other, so that there is one way of being allowed something.
import type { RequestListener, ServerResponse } from 'node:http'
import type { FastifyInstance } from 'fastify'
import { notFound } from '../../model/errors.ts'
import { problemBody } from './problem.ts'

export interface Inhabitant {
  /** The sandbox. */
  name: string
  /** With which it may do what it may. */
  token: string
}

const reachable = /^\/v1\/(?:services|checkpoints?|tasks)(?=[/?]|$)/
const restore = /^\/v1\/checkpoints\/[^/?]+\/restore(?=\?|$)/

export function answerInside(server: FastifyInstance, { name, token }: Inhabitant): RequestListener {
  return (request, response) => {
    const path = request.url ?? '/'
    if (!reachable.test(path)) return refuse(response, path)
    request.url = pathOutside(name, path)
    // Whatever else it says about itself does not count.
    request.headers.authorization = `Bearer ${token}`
    server.routing(request, response)
  }
}

/** Whoever restores from inside is ended by it, and is answered before. */
export function pathOutside(name: string, path: string): string {
  const restoring = restore.exec(path)
  const asked = restoring ? `${restoring[0]}?wait=false` : path
  return asked.replace(/^\/v1\//, `/v1/sandboxes/${name}/`)
}

function refuse(response: ServerResponse, path: string): void {
  const body = problemBody('sandbox', notFound(`no such path: ${path.split('?')[0]}`))
  response.writeHead(404, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

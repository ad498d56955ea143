import type { Socket } from 'node:net'
import { privatePort } from '../model/postgres/cluster.ts'
import type { ConnectionSet } from './connection-set.ts'
import { answerText } from './http/answer.ts'
import type { HttpContext } from './http/context.ts'
import { type ApiContext, ApiRelay, type ApiSettings, isApiEndpoint } from './tcp/api.ts'
import { type DatabaseContext, DatabaseRelay, type DatabaseSettings } from './tcp/database.ts'
import type { Relay } from './tcp/relay.ts'

interface PrivateSettings {
  databases: DatabaseSettings | null | undefined
  api: ApiSettings | null | undefined
}

/** Serves connections of machines to clusters and to the API. */
export class PrivateAcceptor {
  private readonly connections: ConnectionSet
  private readonly databases: DatabaseContext | undefined
  private readonly api: ApiContext | undefined

  constructor({ table, pool, nextId }: HttpContext, connections: ConnectionSet, settings: PrivateSettings) {
    this.connections = connections
    this.databases = settings.databases ? { table: table.databases, pool, settings: settings.databases } : undefined
    this.api = settings.api
      ? {
          pool,
          settings: settings.api,
          connections: new Map(),
          unavailableResponse: () => unavailableResponse(nextId()),
        }
      : undefined
  }

  /** Returns false if the local address is neither a cluster's nor the API's. */
  accept(socket: Socket, localAddress: string): boolean {
    const relay = this.createDatabaseRelay(socket, localAddress) ?? this.createApiRelay(socket, localAddress)
    if (!relay) return false
    this.connections.add(socket, relay)
    relay.start()
    return true
  }

  private createDatabaseRelay(socket: Socket, localAddress: string): Relay | undefined {
    const { databases } = this
    const route = socket.localPort === privatePort ? databases?.table.find(localAddress) : undefined
    return databases && route && new DatabaseRelay(socket, databases, route)
  }

  private createApiRelay(socket: Socket, localAddress: string): Relay | undefined {
    const { api } = this
    if (!api || !isApiEndpoint(api.settings, localAddress, socket.localPort)) return undefined
    return new ApiRelay(socket, api)
  }
}

function unavailableResponse(id: string): string {
  const body = { error: 'the control plane does not answer; try again shortly' }
  return answerText(503, body, '', { id, keepAlive: false, withoutBody: false })
}

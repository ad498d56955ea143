import { isIPv4, type Server, type Socket } from 'node:net'
import { type AppListeners, listen } from './listen.ts'
import type { SocketHolder } from './socket-holder.ts'

interface Address {
  host: string
  port: number
}

const heldNamePrefix = 'edge '

/** The listener at the address that all apps and sandboxes share. */
export class MainListener {
  private readonly holder: SocketHolder
  private readonly hand: (socket: Socket) => void
  private address: Address | undefined
  private server: Server | undefined

  constructor(holder: SocketHolder, hand: (socket: Socket) => void) {
    this.holder = holder
    this.hand = hand
  }

  /** Whether its address is a wildcard that includes this one. */
  includes(host: string, port: number): boolean {
    if (this.address?.port !== port) return false
    return isWildcard(this.address.host) && (this.address.host !== '0.0.0.0' || isIPv4(host))
  }

  /** Listens at this address instead of the present one. If that fails, the present one stays. */
  async open({ host, port }: Address, apps: Pick<AppListeners, 'update'>): Promise<void> {
    const previous = this.address
    if (this.server && previous?.host === host && previous.port === port) return
    this.address = { host, port }
    try {
      await this.replace(apps)
    } catch (error) {
      this.address = previous
      if (previous && !this.server) await this.replace(apps)
      throw error
    } finally {
      await apps.update()
    }
  }

  /** Sockets whose addresses may overlap with the new one are closed first; otherwise no connection is refused meanwhile. */
  private async replace(apps: Pick<AppListeners, 'update'>): Promise<void> {
    const { host, port } = this.address!
    const name = `${heldNamePrefix}${host} ${port}`
    this.holder.discard((held) => held.startsWith(heldNamePrefix) && held !== name)
    if (this.server && this.holder.nameOf(this.server)?.endsWith(` ${port}`)) this.release(this.server)
    await apps.update()
    const server = await listen(this.holder, { name, host, port }, this.hand)
    if (this.server) this.release(this.server)
    this.server = server
  }

  private release(server: Server): void {
    this.holder.remove(server)
    server.close()
    this.server = undefined
  }

  /** The holder keeps the socket for the next process. */
  close(): void {
    this.server?.close()
  }
}

function isWildcard(host: string): boolean {
  return host === '0.0.0.0' || /^[0:]+$/.test(host)
}

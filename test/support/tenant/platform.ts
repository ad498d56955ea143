// A platform with what a tenant can have, used only over HTTP. For tests that attack it.
import { Berth } from '../berth.ts'
import { destroy } from '../client.ts'
import { busyboxImage, programLayer } from '../image.ts'
import { pushImage, type Registry, startRegistry } from '../registry.ts'

const app = 'shop'

/** Keeps a machine running until it is stopped. */
export const idle = 'trap "exit 0" INT TERM; while :; do sleep 0.1; done'

export class Tenant {
  readonly berth = new Berth()
  private registry: Registry | undefined
  private image = ''

  /** Starts the platform and pushes an image with busybox and Perl. */
  async open(): Promise<void> {
    this.registry = await startRegistry()
    const { layers, config } = busyboxImage({ Cmd: ['sh', '-c', idle] })
    const image = { layers: [...layers, programLayer('/usr/bin/perl')], ...(config && { config }) }
    this.image = (await pushImage(this.registry, { repository: 'box', ...image })).reference
    await this.berth.up()
    await this.berth.ok('POST', '/v1/apps', { app_name: app, org_slug: 'personal' })
  }

  async close(): Promise<void> {
    await this.registry?.close()
    await destroy(this.berth)
  }

  /** Calls the API of sandboxes; a text is sent as it is. */
  async onSandbox(method: string, path: string, body?: object | string): Promise<{ status: number; text: string }> {
    const reply = await fetch(`${this.berth.addresses.sandbox}/v1/sandboxes${path}`, {
      method,
      headers: { authorization: `Bearer ${this.berth.token}` },
      ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    })
    return { status: reply.status, text: await reply.text() }
  }

  async createSandbox(name: string, config: object = {}): Promise<void> {
    const made = await this.onSandbox('POST', '', { name, config })
    if (made.status !== 201) throw new Error(`create the sandbox ${name}: ${made.status} ${made.text}`)
  }

  /** Runs a program in a sandbox with this standard input, and returns its standard output. */
  async inSandbox(name: string, command: string[], input = ''): Promise<string> {
    const search = new URLSearchParams([...command.map((word) => ['cmd', word]), ['stdin', 'true']] as [
      string,
      string,
    ][])
    const { addresses, token } = this.berth
    const reply = await fetch(`${addresses.sandbox}/v1/sandboxes/${name}/exec?${search}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}` },
      body: input,
    })
    const frames = Buffer.from(await reply.arrayBuffer())
    if (reply.status !== 200) throw new Error(`exec in ${name}: ${reply.status} ${frames}`)
    return withoutFrames(frames)
  }

  get machines(): string {
    return `/v1/apps/${app}/machines`
  }

  get volumes(): string {
    return `/v1/apps/${app}/volumes`
  }

  async startMachine(config: object = {}): Promise<string> {
    const { id } = await this.berth.ok('POST', this.machines, { config: { image: this.image, ...config } })
    await this.berth.ok('GET', `${this.machines}/${id}/wait?state=started&timeout=60`)
    return id
  }

  async inMachine(id: string, command: string[], stdin = ''): Promise<string> {
    const body = { command, stdin, timeout: 60 }
    return (await this.berth.ok('POST', `${this.machines}/${id}/exec`, body)).stdout
  }
}

/** Drops the byte that starts each run of standard output, and everything else. Programs here print only ASCII. */
function withoutFrames(frames: Buffer): string {
  const output: number[] = []
  let stream = 0
  for (const byte of frames) {
    if (byte >= 1 && byte <= 3) stream = byte
    else if (stream === 1) output.push(byte)
  }
  return Buffer.from(output).toString()
}

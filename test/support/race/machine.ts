// What is so about the machines and volumes of a platform, read from the host and not from the API.
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { request } from 'node:http'
import type { Berth } from '../berth.ts'
import { type BoxProcess, homeNumber, list, processesOfBox, read, type Traces, tracesOfBoxes } from './host.ts'

/** The block size of filesystems from half a gigabyte on. */
const blockBytes = 4096

export class MachineReality {
  private readonly berth: Berth

  constructor(berth: Berth) {
    this.berth = berth
  }

  /** The ids of everything on the host that belongs to a machine, with what it is. */
  traces(): Traces {
    return tracesOfBoxes(this.berth, 'machine', /^machine-([0-9a-f]{14})/)
  }

  /** Everything that runs for the machine, with the processes of the platform. */
  processes(id: string): BoxProcess[] {
    return processesOfBox(this.berth, 'machine', id)
  }

  /** The processes that the machine was started for. */
  programs(id: string): BoxProcess[] {
    return this.processes(id).filter(({ pid }) => pid === 2)
  }

  isFrozen(id: string): boolean {
    const name = `berth-${homeNumber(this.berth)}-machine-${id}`
    const files = [`freezer/${name}/freezer.state`, `${name}/cgroup.events`, `unified/${name}/cgroup.events`]
    return files.some((file) => /^FROZEN|^frozen 1$/m.test(read(`/sys/fs/cgroup/${file}`)))
  }

  /** The interfaces of boxes and private networks on the host, of all machines. */
  links(): string[] {
    const ours = new RegExp(`^b[xm]${homeNumber(this.berth)}-`)
    return list('/sys/class/net').filter((name) => ours.test(name))
  }

  /** The interfaces on the host that a running machine has. */
  linksOf(id: string): string[] {
    const config = read(`${this.berth.home}/machine/${id}/box.conf`)
    return [...config.matchAll(/^(?:private-)?link (\S+)$/gm)].map((match) => match[1]!)
  }

  /** The volumes that a process has mounted, as `<volume> at <path>`. */
  mounts({ hostPid }: BoxProcess): string[] {
    const devices = new Map(this.disks().map(({ id, device }) => [device, id]))
    const lines = read(`/proc/${hostPid}/mountinfo`).split('\n')
    return lines.flatMap((line) => {
      const [, , device = '', , path] = line.split(' ')
      return devices.has(device) ? [`${devices.get(device)} at ${path}`] : []
    })
  }

  /** The loop devices of volumes. */
  disks(): { id: string; device: string }[] {
    return list('/sys/block').flatMap((name) => {
      const file = read(`/sys/block/${name}/loop/backing_file`).trim()
      const id = file.startsWith(`${this.berth.home}/volume/`) ? file.split('/').at(-2)! : ''
      return id === '' ? [] : [{ id, device: read(`/sys/block/${name}/dev`).trim() }]
    })
  }

  volumes(): string[] {
    return list(`${this.berth.home}/volume`)
  }

  snapshots(): string[] {
    return list(`${this.berth.home}/snapshot`)
  }

  /** What is wrong with a disk image that nothing has mounted: its size, if one is given, or its filesystem. */
  diskProblem(path: string, sizeGb?: number): string | undefined {
    const disk = `${this.berth.home}/${path}/disk`
    // On hosts that cannot mount files a volume is a directory.
    if (!existsSync(disk)) return existsSync(`${this.berth.home}/${path}/files`) ? undefined : `there is no ${path}`
    const { status, stdout } = spawnSync('e2fsck', ['-fn', disk], { encoding: 'utf8' })
    if (status !== 0) return `${path} is damaged: ${stdout}`
    const blocks = Number(/, \d+\/(\d+) blocks/.exec(stdout)?.[1])
    const isRight = sizeGb === undefined || blocks * blockBytes === sizeGb * 1024 ** 3
    return isRight ? undefined : `${path} has ${blocks} blocks, and not ${sizeGb} GB`
  }

  /** Sends a request through the edge, and returns the body of a successful response; undefined for any other. */
  async ask(host: string, address?: string): Promise<string | undefined> {
    const edge = new URL(this.berth.addresses.edge)
    return new Promise((resolve, reject) => {
      const at = { host: address ?? edge.hostname, port: edge.port, headers: { host }, agent: false as const }
      const sent = request(at, (reply) => {
        let text = ''
        reply.on('data', (data) => {
          text += data
        })
        reply.once('end', () => resolve(reply.statusCode === 200 ? text.trim() : undefined))
        reply.once('error', reject)
      })
      sent.once('error', (error: NodeJS.ErrnoException) => {
        // The edge does not listen at addresses that no app has.
        if (error.code === 'ECONNREFUSED') resolve(undefined)
        else reject(error)
      })
      sent.end()
    })
  }
}

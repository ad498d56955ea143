// What is so about the clusters of a platform, read from the host, the servers and the repository, and not from the API.
import type { Berth } from '../berth.ts'
import { controlGroups, processesOf } from '../client.ts'
import { list, Traces } from './host.ts'

export class ClusterReality {
  private readonly berth: Berth

  constructor(berth: Berth) {
    this.berth = berth
  }

  /** The ids of everything on the host that belongs to a cluster, with what it is. The repository keeps deleted ones. */
  traces(): Traces {
    const found = new Traces()
    for (const id of list(`${this.berth.home}/clusters`)) found.add(id, 'directory')
    const named: [string, string[]][] = [
      ['supervised', list(`${this.berth.home}/tree`)],
      ['sockets', list(`${this.berth.home}/run`)],
      ['control group', controlGroups(this.berth).map((group) => group.slice(group.lastIndexOf('/') + 1))],
    ]
    for (const [what, names] of named) {
      for (const name of names) {
        // Sandboxes and machines have ids of their own, and the scratch cluster of a drill has one until it ends.
        const id = /^(?!sandbox|checkpoint)(?:.*-)?([a-z0-9]{16})$/.exec(name)?.[1]
        if (id) found.add(id, `${what} ${name}`)
      }
    }
    return found
  }

  /** The pids of the servers of a cluster, without their backends. */
  servers(id: string): number[] {
    const server = new RegExp(`^\\d+ \\S*/postgres -D \\S*/clusters/${id}/data`)
    return processesOf(`-D ${this.berth.home}/clusters/${id}/data`)
      .filter(({ line }) => server.test(line))
      .map(({ pid }) => pid)
  }

  /** The labels of the complete backups in the repository. */
  backups(id: string): string[] {
    return list(`${this.berth.home}/repository/${id}/backups`).filter((name) => !name.startsWith('.'))
  }
}

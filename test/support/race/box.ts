// What is so about the boxes of a platform, read from the host and not from the API.
import { execFileSync } from 'node:child_process'
import type { Berth } from '../berth.ts'
import { type BoxProcess, homeNumber, list, processesOfBox, read, type Traces, tracesOfBoxes } from './host.ts'

export class BoxReality {
  private readonly berth: Berth

  constructor(berth: Berth) {
    this.berth = berth
  }

  /** The ids of everything on the host that belongs to a sandbox, with what it is. */
  traces(): Traces {
    return tracesOfBoxes(this.berth, 'sandbox', /^(?:sandbox|checkpoint)-([a-z0-9]{16})/)
  }

  processes(id: string): BoxProcess[] {
    return processesOfBox(this.berth, 'sandbox', id)
  }

  /** The names of the services that s6 supervises in the box. */
  services(id: string): string[] {
    return list(`${this.berth.home}/sandbox/${id}/service`).filter((name) => !/^\.|~/.test(name))
  }

  checkpoints(id: string): string[] {
    return list(`${this.berth.home}/sandbox/${id}/checkpoint`).filter((name) => /^v\d+$/.test(name))
  }

  /** The network policy as the box sees it. */
  shownPolicy(id: string): { rules: unknown[] } | undefined {
    const text = read(`${this.berth.home}/sandbox/${id}/shown/policy/network.json`)
    return text === '' ? undefined : JSON.parse(text)
  }

  /** Whether the kernel has a policy for the network interface of the box. */
  hasKernelPolicy(id: string): boolean {
    const link = /^link (\S+)$/m.exec(read(`${this.berth.home}/sandbox/${id}/box.conf`))?.[1]
    const policies = execFileSync('nft', ['list', 'map', 'inet', `berth-${homeNumber(this.berth)}`, 'policies'], {
      encoding: 'utf8',
    })
    return link !== undefined && policies.includes(`"${link}"`)
  }
}

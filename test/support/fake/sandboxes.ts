import type { CheckpointDriver } from '../../../src/drivers/box/checkpoint/driver.ts'
import { type BoxDriver, type BoxEntry, BoxStartError } from '../../../src/drivers/box/driver.ts'
import { findCommandPath, findCommandPid, signalCommand } from '../../../src/drivers/box/enter/command.ts'
import { renderRequest } from '../../../src/drivers/box/enter/enter.ts'
import { startHelper } from '../../../src/drivers/box/enter/helper.ts'
import { readPorts } from '../../../src/drivers/box/port.ts'
import type { BoxSpec } from '../../../src/model/sandbox/box.ts'
import { FakeImports } from './imports.ts'
import type { FakeService } from './services.ts'

/** Lets helpers run on the host instead of in a box. */
function entryToHost(): BoxEntry {
  const env = renderRequest({
    machine: [process.arch],
    way: ['none'],
    uid: [String(process.getuid!())],
    service: [''],
    cgroup: [],
    filter: ['/dev/null'],
  })
  return { program: 'perl', args: [], env }
}

/** Keeps boxes, services and checkpoints in memory. */
export class FakeSandboxes extends FakeImports {
  readonly services = new Map<string, FakeService>()
  /** Whether each box is running, by id. */
  readonly boxesUp = new Map<string, boolean>()
  /** The last spec of each box. */
  readonly specs = new Map<string, BoxSpec>()
  stops = 0
  boxProblem: string | undefined
  /** Why boxes do not start because of what they have written. */
  bootProblem: string | undefined
  /** The strays that were removed, and whether their files were kept. */
  readonly removedStrays = new Map<string, boolean>()
  readonly removedSlots: number[] = []
  policiesPossible = true
  /** The content of each box, as a word instead of files, and its checkpoints. */
  readonly layers = new Map<string, string>()
  readonly copies = new Map<string, string>()
  checkpointProblem: string | undefined

  get boxes(): BoxDriver {
    return {
      policiesPossible: () => this.policiesPossible,
      isolation: () => this.called({ kind: 'bubblewrap', network: 'own' } as const),
      ensureBox: (spec) => {
        if (this.boxProblem) throw new Error(this.boxProblem)
        if (this.bootProblem) throw new BoxStartError(this.bootProblem)
        this.boxesUp.set(spec.id, true)
        this.specs.set(spec.id, spec)
        return this.called(undefined)
      },
      inspectBox: (id) => {
        const up = this.boxesUp.get(id)
        return this.called(up === undefined ? { is: 'absent' } : up ? { is: 'up', pid: 1 } : { is: 'down' })
      },
      stopBox: (id) => {
        this.stops++
        this.boxesUp.set(id, false)
        return this.called(undefined)
      },
      removeBox: ({ id }) => {
        this.boxesUp.delete(id)
        for (const key of this.copies.keys()) if (key.startsWith(`${id}/`)) this.copies.delete(key)
        return this.called(undefined)
      },
      findSessions: () => Promise.resolve(),
      listBoxes: () => [...this.boxesUp.keys()],
      findSlot: (id) => this.specs.get(id)?.slot,
      removeStray: (id, { keepFiles }) => {
        this.boxesUp.delete(id)
        this.removedStrays.set(id, keepFiles)
        return this.called(undefined)
      },
      removeSlot: async (slot) => void this.removedSlots.push(slot),
      signalCommand,
      findCommandPid,
      findCommandPath,
      startFileHelper: (_spec, ...words) => startHelper(entryToHost(), 'box/file/file.pl', words),
      startDialHelper: (_spec, { port, timeoutSeconds, targets }) =>
        startHelper(entryToHost(), 'box/enter/dial.pl', [String(port), String(timeoutSeconds), ...targets]),
      readPorts,
      addressOf: () => '127.0.0.1',
    } as Partial<BoxDriver> as BoxDriver
  }

  get checkpoints(): CheckpointDriver {
    const problem = () => this.checkpointProblem && ({ is: 'failed', reason: this.checkpointProblem } as const)
    return {
      makeCheckpoint: ({ id }, checkpoint) => {
        if (!this.boxesUp.get(id)) throw new Error('the box is down')
        const key = `${id}/${checkpoint}`
        if (!this.checkpointProblem && !this.copies.has(key)) this.copies.set(key, this.layers.get(id) ?? '')
        return this.called(problem() || ({ is: 'done' } as const))
      },
      prepareRestore: ({ id }, from, kept) => {
        const [key, copy] = [`${id}/restore~${kept}`, this.copies.get(`${id}/${from}`)]
        if (copy === undefined) throw new Error('there is no such checkpoint')
        if (!this.checkpointProblem && !this.copies.has(`${id}/${kept}`)) this.copies.set(key, copy)
        return this.called(problem() || ({ is: 'done' } as const))
      },
      swapLayers: ({ id }, kept) => {
        if (this.boxesUp.get(id)) throw new Error('the box is up')
        const prepared = this.copies.get(`${id}/restore~${kept}`)
        if (!this.copies.has(`${id}/${kept}`)) {
          this.copies.set(`${id}/${kept}`, this.layers.get(id) ?? '')
          this.layers.set(id, prepared!)
        }
        this.copies.delete(`${id}/restore~${kept}`)
        return this.called(undefined)
      },
      tidy: () => this.called(undefined),
      measureLayers: () => this.called(this.usedBytes),
      abandonCopy: ({ id }, checkpoint) => {
        this.copies.delete(`${id}/restore~${checkpoint}`)
        return this.called(undefined)
      },
      removeCheckpoint: (id, checkpoint) => {
        this.copies.delete(`${id}/${checkpoint}`)
        return this.called(undefined)
      },
    }
  }
}

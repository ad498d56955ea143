import type { KeyObject } from 'node:crypto'
import type { VolumeDriver } from '../../../src/drivers/volume/driver.ts'
import type { World } from '../../../src/reconcile/step.ts'
import { FakeImages, FakeMachines } from './machines.ts'
import { FakeSandboxes } from './sandboxes.ts'

/** Keeps machines, images and volumes in memory. */
export class FakeApps extends FakeSandboxes {
  /** The certificate that the authority issues. */
  certificate = { fullchain: '', privateKey: '' }
  protected key: KeyObject | undefined
  /** The sizes of disks in GB, the bytes in use, and the source volume of each snapshot. */
  readonly disks = new Map<string, number>()
  readonly diskUse = new Map<string, number>()
  readonly diskCopies = new Map<string, string>()
  diskProblem: string | undefined
  disksGrowAtStart = false
  machines = new FakeMachines()
  images = new FakeImages()
  protected machineDrivers: Pick<World, 'machines' | 'images'> | undefined

  get volumes(): VolumeDriver {
    const gigabyte = 1024 ** 3
    return {
      enforcesSize: () => this.called(true),
      growsAtStart: () => this.called(this.disksGrowAtStart),
      ensureVolume: ({ id, sizeGb }) => {
        if (this.diskProblem) return this.called({ is: 'failed', reason: this.diskProblem } as const)
        this.disks.set(id, Math.max(sizeGb, this.disks.get(id) ?? 0))
        return this.called({ is: 'done' } as const)
      },
      extendVolume: (id, sizeGb) => {
        if (!this.disks.has(id)) throw new Error('there is no such volume')
        if (this.disksGrowAtStart) return this.called({ needsRestart: true })
        this.disks.set(id, sizeGb)
        return this.called({ needsRestart: false })
      },
      measureVolume: (id) => {
        const blocks = ((this.disks.get(id) ?? 0) * gigabyte) / 4096
        const bytesUsed = this.diskUse.get(id) ?? 409_600
        return this.disks.has(id)
          ? { blockSize: 4096, blocks, blocksFree: blocks - bytesUsed / 4096, bytesUsed }
          : undefined
      },
      ensureSnapshot: (volumeId, snapshotId) => {
        if (this.diskProblem) return this.called({ is: 'failed', reason: this.diskProblem } as const)
        this.diskCopies.set(snapshotId, volumeId)
        return this.called({ is: 'done' } as const)
      },
      measureSnapshot: () => 409_600,
      removeSnapshot: (id) => {
        this.diskCopies.delete(id)
        return this.called(undefined)
      },
      removeVolume: (id) => {
        this.disks.delete(id)
        return this.called(undefined)
      },
      mountOf: (id) => ({ source: `/volume/${id}/disk`, kind: 'image' }),
    }
  }

  /** Returns the same drivers every time, because they keep the state of running operations. */
  protected get drivenMachines(): Pick<World, 'machines' | 'images'> {
    const called = <T>(value: T) => this.called(value)
    this.machineDrivers ??= {
      machines: this.machines.driver(called),
      images: this.images.store(called),
    }
    return this.machineDrivers
  }
}

/** How far something is that may take long. */
export type VolumeWork = { is: 'done' } | { is: 'running' } | { is: 'failed'; reason: string }

export interface VolumeMeasure {
  blockSize: number
  blocks: number
  blocksFree: number
  bytesUsed: number
}

/**
 * Disks of machines: they survive the machines that they are attached to. Owners on them are those that the machine
 * sees, 0 its root: whoever mounts one maps them.
 */
export interface VolumeDriver {
  /** Whether writing beyond the size of a volume is stopped on this host. */
  enforcesSize(): Promise<boolean>
  /** Made empty, or as a copy of a snapshot or of another volume. Repeating is harmless. */
  ensureVolume(volume: {
    id: string
    sizeGb: number
    from?: { snapshotId: string } | { volumeId: string }
  }): Promise<VolumeWork>
  /** Whether a disk that is mounted keeps its size on this host. */
  growsAtStart(): Promise<boolean>
  /**
   * Only growth; nothing happens when it is as large already. A machine that has it mounted sees the new size at once, or
   * where disks grow only then after its next start: this is called again before that, when nothing has it mounted.
   */
  extendVolume(id: string, sizeGb: number): Promise<{ needsRestart: boolean }>
  /** Undefined when there is no such volume, or its size is not enforced. */
  measureVolume(id: string): VolumeMeasure | undefined
  /** As after a power cut. Whoever writes to the volume waits meanwhile. */
  ensureSnapshot(volumeId: string, snapshotId: string): Promise<VolumeWork>
  /** What it takes on the disk, blocks that it shares with others included. */
  measureSnapshot(snapshotId: string): number
  removeSnapshot(snapshotId: string): Promise<void>
  removeVolume(id: string): Promise<void>
  /** What the box of a machine mounts, and how: read by `box-start.pl` when the machine starts. */
  mountOf(id: string): { source: string; kind: 'directory' | 'image' }
}

/** Disks of machines: they survive the machines that they are attached to. */
export interface VolumeDriver {
  /** Whether writing beyond the size of a volume is stopped on this host. */
  enforcesSize(): Promise<boolean>
  /** Made empty, or as a copy of a snapshot or of another volume. Repeating is harmless. */
  ensureVolume(volume: {
    id: string
    sizeGb: number
    from?: { snapshotId: string } | { volumeId: string }
  }): Promise<void>
  /** Only growth. True when it becomes visible only after the machine was started again. */
  extendVolume(id: string, sizeGb: number): Promise<{ needsRestart: boolean }>
  measureVolume(id: string): Promise<{ blockSize: number; blocks: number; blocksFree: number; bytesUsed: number }>
  /** Crash-consistent. The digest is of the copy's content or a name of it. */
  ensureSnapshot(volumeId: string, snapshotId: string): Promise<{ bytes: number }>
  removeSnapshot(volumeId: string, snapshotId: string): Promise<void>
  removeVolume(id: string): Promise<void>
  /** What the box of a machine mounts, and how: read by `box-start.pl` when the machine starts. */
  mountOf(id: string): { source: string; kind: 'directory' | 'image' }
}

/** The progress of work that may take long. */
export type VolumeWork = { is: 'done' } | { is: 'running' } | { is: 'failed'; reason: string }

export interface VolumeMeasure {
  blockSize: number
  blocks: number
  blocksFree: number
  bytesUsed: number
}

/**
 * Disks of machines, which survive the machines that they are attached to. Files on them belong to the ids that a machine
 * sees, 0 being its root; the mount maps them to the ids of the box.
 */
export interface VolumeDriver {
  /** Whether this host stops writes beyond the size of a volume. */
  enforcesSize(): Promise<boolean>
  /** Creates an empty volume or a copy of a snapshot or volume. Calling it again is harmless. */
  ensureVolume(volume: {
    id: string
    sizeGb: number
    from?: { snapshotId: string } | { volumeId: string }
  }): Promise<VolumeWork>
  /** Whether this host cannot grow a mounted volume. */
  growsAtStart(): Promise<boolean>
  /**
   * Grows a volume; does nothing when it is large enough. A machine that has it mounted sees the new size at once. Where
   * mounted volumes cannot grow, the call has to be repeated before the machine's next start, while it is not mounted.
   */
  extendVolume(id: string, sizeGb: number): Promise<{ needsRestart: boolean }>
  /** Returns undefined when the volume does not exist, or its size is not enforced. */
  measureVolume(id: string): VolumeMeasure | undefined
  /** Creates a crash-consistent copy. Writes to the volume block meanwhile. */
  ensureSnapshot(volumeId: string, snapshotId: string): Promise<VolumeWork>
  /** Returns the allocated bytes, including blocks shared with other files. */
  measureSnapshot(snapshotId: string): number
  removeSnapshot(snapshotId: string): Promise<void>
  removeVolume(id: string): Promise<void>
  /** Returns what the box of a machine mounts when it starts. */
  mountOf(id: string): { source: string; kind: 'directory' | 'image' }
}

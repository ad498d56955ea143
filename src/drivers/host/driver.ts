export interface CgroupLimits {
  memoryMb: number
  /** Swap in addition to memory; unlimited if missing. */
  swapMb?: number
  cpus: number
  pids: number
}

export interface CgroupDriver {
  /** Whether this process can set limits on this host. */
  cgroupsAvailable(): boolean
  /**
   * Creates the group or changes its limits. Returns the files for `ServiceSpec.cgroup`, none if there are no groups.
   */
  ensureCgroup(name: string, limits: CgroupLimits): string[]
  /** Returns the files that `ensureCgroup` returned, without changing limits. */
  findCgroup(name: string): string[]
  /** Lists all groups at the same level as those of this driver. */
  listCgroups(): string[]
  /** Waits a few seconds for processes that are about to end. */
  removeCgroup(name: string): Promise<void>
}

export interface GroupMemory {
  limitBytes: number
  /** Does not count the page cache, which the kernel can read from files again. */
  usedBytes: number
}

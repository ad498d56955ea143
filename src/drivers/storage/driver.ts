// The storage pool: a file system of the platform that can limit the size of directories and share blocks between copies.

export const poolFileSystems = ['xfs', 'btrfs', 'ext4'] as const
export type PoolFileSystem = (typeof poolFileSystems)[number]

/** The pool cannot be created or changed as asked; the message says what would work. */
export class StorageError extends Error {
  override readonly name = 'StorageError'
}

export interface StorageQuota {
  /** Whether the size of directories can be limited. */
  isPossible(): Promise<boolean>
  /**
   * Creates a directory whose size can be limited, unless it exists. Must precede the first write to it. Without quotas it
   * does nothing.
   */
  ensureDirectory(directory: string): Promise<void>
  /**
   * Limits what the directory and everything below it may occupy; undefined removes the limit. Writes beyond it fail with
   * EDQUOT or ENOSPC. Does nothing where quotas are not possible or the directory was not made for them. With `parts`,
   * which project quotas need for a sandbox, only these entries of the directory count.
   */
  ensureLimit(directory: string, bytes: number | undefined, parts?: string[]): Promise<void>
}

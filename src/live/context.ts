import type { KeyObject } from 'node:crypto'
import type { BoxDriver } from '../drivers/box/driver.ts'
import type { BoxServices } from '../drivers/box/service/service.ts'
import type { ImageStore } from '../drivers/image/store.ts'
import type { MachineDriver } from '../drivers/machine/driver.ts'
import type { Hosting, PostgresDriver } from '../drivers/postgres/driver.ts'
import type { PoolerDriver } from '../drivers/postgres/pooler/driver.ts'
import type { Repository } from '../drivers/repository/driver.ts'
import type { VolumeDriver } from '../drivers/volume/driver.ts'
import { unavailable } from '../model/errors.ts'
import type { PlatformSettings } from '../model/settings.ts'
import type { MachineFeed } from '../store/app/machine-feed.ts'
import type { Db } from '../store/db.ts'
import type { SandboxFeed } from '../store/sandbox/feed.ts'
import type { ExecSessions } from './sandbox/exec.ts'

/** Who is asking, and what with, where the answer is out in the world. No transaction is open. */
export interface LiveContext {
  db: Db
  area: 'platform' | 'sandbox'
  tokenHash: Buffer
  settings: PlatformSettings
  encryptionKey: Buffer
  hosting: Hosting
  postgres: PostgresDriver
  pooler: PoolerDriver
  repository: Repository
  boxes: BoxDriver
  services: BoxServices
  volumes: VolumeDriver
  sandboxFeed: SandboxFeed
  machines: MachineDriver
  images: ImageStore
  machineFeed: MachineFeed
  /** Whether machines of one network can reach each other here, and nothing else. */
  hasPrivateNetworks(): Promise<boolean>
  sessions: ExecSessions
  /** The last lines of a cluster's server, oldest first; none before its first start. */
  readClusterLog(id: string, lines: number): string[]
  /** The certificate with which clients verify clusters, as PEM. */
  readAuthority(): Promise<string>
  /** With which identities of machines are signed. */
  identityKey(): Promise<KeyObject>
  /** A certificate for a host name, by the platform's own authority. */
  makeCertificate(hostname: string): Promise<{ fullchain: string; privateKey: string }>
  /** What the names of the world say of a host name. */
  lookUpName(hostname: string): Promise<{ a: string[]; aaaa: string[]; cname: string[] }>
}

const deadlineSeconds = 10

/** The world may hang; a request may not. */
export async function withDeadline<T>(answer: Promise<T>, what: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(
      () => reject(unavailable(`${what} did not answer within ${deadlineSeconds} s`)),
      deadlineSeconds * 1000,
    )
  })
  try {
    return await Promise.race([answer, late])
  } finally {
    clearTimeout(timer)
  }
}

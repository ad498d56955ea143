import type { KeyObject } from 'node:crypto'
import type { BoxDriver } from '../drivers/box/driver.ts'
import type { BoxServices } from '../drivers/box/service/driver.ts'
import type { ImageStore } from '../drivers/image/driver.ts'
import type { MachineDriver } from '../drivers/machine/driver.ts'
import type { Hosting, PostgresDriver } from '../drivers/postgres/driver.ts'
import type { PoolerDriver } from '../drivers/postgres/pooler/driver.ts'
import type { Repository } from '../drivers/repository/driver.ts'
import type { VolumeDriver } from '../drivers/volume/driver.ts'
import type { Attenuation } from '../model/account/macaroon.ts'
import type { NameRecords } from '../model/app/certificate.ts'
import { unavailable } from '../model/errors.ts'
import type { PlatformSettings } from '../model/settings.ts'
import type { MachineFeed } from '../store/app/machine-feed.ts'
import type { Db } from '../store/db.ts'
import type { SandboxFeed } from '../store/sandbox/feed.ts'
import type { Turns } from '../store/turn.ts'
import type { OpenConnections } from './connection.ts'
import type { AdoptionRun } from './postgres/adopt-run.ts'
import type { ExecSessions } from './sandbox/exec-sessions.ts'

/** The caller, and everything that request handlers need which ask drivers. No transaction is open. */
export interface LiveContext {
  db: Db
  /** Serializes what changes the same thing of the host. */
  turns: Turns
  area: 'platform' | 'sandbox'
  tokenHash: Buffer
  attenuation: Attenuation | undefined
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
  /** True where machines can have private networks. */
  hasPrivateNetworks(): Promise<boolean>
  sessions: ExecSessions
  adoption: AdoptionRun
  /** Counts what callers keep open. */
  connections: OpenConnections
  /** The last log lines of a cluster's server, oldest first. */
  readClusterLog(id: string, lines: number): string[]
  /** The CA certificate that clients verify clusters with, as PEM. */
  readAuthority(): Promise<string>
  /** The key that signs the identity tokens of machines. */
  identityKey(): Promise<KeyObject>
  /** Issues a certificate for a host name, signed by the CA of the platform. */
  makeCertificate(hostname: string): Promise<{ fullchain: string; privateKey: string }>
  /** Writes the root token to its file. Undefined when the configuration sets the token. */
  writeRootToken: ((token: string) => void) | undefined
  /** Looks up the DNS records of a host name. */
  lookUpName(hostname: string, known: string[]): Promise<NameRecords>
}

const deadlineSeconds = 10

/** Fails with 503 when a driver does not answer in time. */
export async function withDeadline<T>(answer: Promise<T>, what: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(
      () => reject(unavailable(`${what} did not answer within ${deadlineSeconds} s`)),
      deadlineSeconds * 1000,
    )
  })
  try {
    return await Promise.race([answer, timeout])
  } finally {
    clearTimeout(timer)
  }
}

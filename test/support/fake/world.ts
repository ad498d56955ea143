import { generateKeyPairSync, randomBytes } from 'node:crypto'
import type { LiveContext } from '../../../src/live/context.ts'
import type { NameRecords } from '../../../src/model/app/certificate.ts'
import type { World } from '../../../src/reconcile/step.ts'
import { turnsWith } from '../../../src/store/turn.ts'
import { FakeApps } from './apps.ts'
import { FakeImages, FakeMachines } from './machines.ts'
import { fakeServices } from './services.ts'

type HostAccess = Pick<
  LiveContext,
  'readClusterLog' | 'readAuthority' | 'identityKey' | 'writeRootToken' | 'lookUpName'
>

/** Every driver in memory. The areas share one flat object, so that a test finds each switch by its name. */
export class FakeWorld extends FakeApps {
  readonly encryptionKey = randomBytes(32)
  /** Those of one process. */
  readonly turns = turnsWith(async () => async () => undefined)
  /** The root tokens that were written to the file, oldest first. */
  rootTokens: string[] = []
  /** The DNS records of every host name. */
  records: NameRecords = { a: [], aaaa: [], cname: [], soa: null, acmeChallengeCname: null, ownershipTxt: null }

  reset(): void {
    const { encryptionKey, turns, machines, images, machineDrivers } = this
    Object.assign(machines, new FakeMachines())
    Object.assign(images, new FakeImages())
    Object.assign(this, { ...new FakeWorld(), encryptionKey, turns, machines, images, machineDrivers })
  }

  world(db: World['db']): World & HostAccess {
    return {
      readClusterLog: (id, lines) => (this.logs.get(id) ?? []).slice(-lines),
      readAuthority: () => this.called('-----BEGIN CERTIFICATE-----\n'),
      makeCertificate: () => this.called(this.certificate),
      identityKey: async () => {
        this.key ??= generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey
        return this.key
      },
      writeRootToken: (token) => void this.rootTokens.push(token),
      lookUpName: () => this.called(this.records),
      db,
      turns: this.turns,
      encryptionKey: this.encryptionKey,
      hosting: this.hosting,
      postgres: this.postgres,
      pooler: this.pooler,
      repository: this.repository,
      receiver: this.receiver,
      backups: this.backups,
      restores: this.restores,
      drills: this.drills,
      imports: this.imports,
      upgrades: this.upgrades,
      boxes: this.boxes,
      services: fakeServices(() => this.services),
      checkpoints: this.checkpoints,
      ...this.drivenMachines,
      hasPrivateNetworks: async () => true,
      homeNumber: 0,
      volumes: this.volumes,
      keep: {
        backupIntervalSeconds: 86_400,
        scrubIntervalSeconds: 604_800,
        drillIntervalSeconds: this.drillIntervalSeconds,
        pitrDays: 7,
        deletedDays: 7,
      },
    }
  }
}

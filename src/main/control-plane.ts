import type pg from 'pg'
import type { Logger } from 'pino'
import { prepareFirstUse } from '../actions/first-use.ts'
import { checkpointDriver } from '../drivers/box/checkpoint/checkpoint.ts'
import { withSubvolumes } from '../drivers/box/checkpoint/subvolume.ts'
import { closeBoxDirectories } from '../drivers/box/directory.ts'
import { boxDriver } from '../drivers/box/lifecycle.ts'
import { boxServices } from '../drivers/box/service/service.ts'
import { issueCertificate } from '../drivers/host/certificate.ts'
import { cgroupDriver } from '../drivers/host/cgroup.ts'
import { registerControlProcess, unregisterControlProcess } from '../drivers/host/control-process.ts'
import { type Home, openHome, readOrCreateKey, readOrCreateToken } from '../drivers/host/home.ts'
import { emptyTrash } from '../drivers/host/trash.ts'
import { imageStore } from '../drivers/image/store.ts'
import { machineDriver } from '../drivers/machine/lifecycle.ts'
import type { OutboundPolicy } from '../drivers/network/guarded-http.ts'
import { outboundLookup } from '../drivers/network/outbound-lookup.ts'
import { supportsPrivateNetworks } from '../drivers/network/private.ts'
import { backupDriver } from '../drivers/postgres/backup/backup.ts'
import { drillDriver } from '../drivers/postgres/drill/drill.ts'
import { localHosting } from '../drivers/postgres/hosting.ts'
import { importDriver } from '../drivers/postgres/import/import.ts'
import { poolerDriver } from '../drivers/postgres/pooler/pooler.ts'
import { receiverDriver } from '../drivers/postgres/receiver/receiver.ts'
import { restoreDriver } from '../drivers/postgres/restore/restore.ts'
import { postgresDriver } from '../drivers/postgres/server.ts'
import { ensureToolchain } from '../drivers/postgres/toolchain/toolchain.ts'
import { upgradeDriver } from '../drivers/postgres/upgrade/upgrade.ts'
import { directoryRepository } from '../drivers/repository/directory.ts'
import type { Supervisor } from '../drivers/s6/driver.ts'
import { jobDriver } from '../drivers/s6/job.ts'
import { s6Supervisor } from '../drivers/s6/supervisor.ts'
import { ensureStateDatabase, type StateDatabase } from '../drivers/state/database.ts'
import { stateDumpDriver } from '../drivers/state/dump.ts'
import { mountPool } from '../drivers/storage/mount.ts'
import { volumeDriver } from '../drivers/volume/lifecycle.ts'
import { newTokenText } from '../model/account/token.ts'
import { watchCertificates } from '../reconcile/app/certificate.ts'
import { startChecker } from '../reconcile/app/machine-check.ts'
import { watchMachines } from '../reconcile/app/machine-watch.ts'
import { startEdgeRequests } from '../reconcile/edge-request.ts'
import { startSampler } from '../reconcile/postgres/sampler.ts'
import { startStrayRemoval } from '../reconcile/sandbox/stray.ts'
import { type StateBackup, startStateBackup } from '../reconcile/state-backup.ts'
import type { World } from '../reconcile/step.ts'
import { startWorker, type Worker } from '../reconcile/worker.ts'
import { tokenFeed } from '../store/account/token.ts'
import { machineFeed } from '../store/app/machine-feed.ts'
import { type Database, openDatabase } from '../store/db.ts'
import { edgeRequestChannel } from '../store/edge-request.ts'
import { listen } from '../store/listen.ts'
import { migrate } from '../store/migrate.ts'
import { type OpenTurns, openTurns, type Turns } from '../store/turn.ts'
import { workChannel } from '../store/work.ts'
import type { Config } from './config.ts'
import { openLog } from './log.ts'
import type { Startup } from './startup.ts'
import { watchTree } from './tree.ts'

/** The resources shared by all parts of a control plane process. */
export interface ControlPlane {
  config: Config
  home: Home
  supervisor: Supervisor
  databaseConfig: pg.ClientConfig
  db: Database
  /** A separate pool for background work, so that its slow commits do not keep requests waiting for a connection. */
  workDb: Database
  /** Of this process; other workers wait for them. */
  turns: OpenTurns
  world: World
  log: Logger
}

/** Starts the supervision tree and the state database unless they run, and migrates the schema. */
export async function openControlPlane(config: Config, { log: target, step }: Startup): Promise<ControlPlane> {
  await mountPool(config.home)
  const home = await openHome(config.home, { uidBase: config.uidBase })
  const log = openLog(config, home, target)
  // A promise that fails unnoticed must not end the process, which serves other requests.
  process.on('unhandledRejection', (err) => log.error({ err }, 'unhandled rejection'))
  registerControlProcess(home)
  closeBoxDirectories(home)
  emptyTrash(home) // deletions that a crash interrupted
  const supervisor = openSupervisor(home)
  step('Starting the supervision tree')
  await supervisor.ensureTree()
  const databaseConfig = await ensureDatabase({ config, home, supervisor, step })
  const db = openDatabase(databaseConfig)
  step('Updating the schema of the state database')
  const migrations = await migrate(db)
  if (migrations.length > 0) log.info({ migrations }, 'migrated the state database')
  await prepareFirstUse(db, config.token ?? readOrCreateToken(home, newTokenText), config.quotas)
  const workDb = openDatabase(databaseConfig)
  const turns = openTurns(databaseConfig)
  const world = openWorld({ config, home, supervisor, db: workDb, turns, log })
  return { config, home, supervisor, databaseConfig, db, workDb, turns, world, log }
}

interface WorldParts {
  config: Config
  home: Home
  supervisor: Supervisor
  db: Database
  turns: Turns
  log: Logger
}

function openWorld({ config, home, supervisor, db, turns, log }: WorldParts): World {
  const postgres = postgresDriver({ home, supervisor })
  const repository = directoryRepository(config.repository)
  const jobs = jobDriver(supervisor)
  const cgroups = cgroupDriver()
  const volumes = volumeDriver({ home, jobs })
  const images = imageStore({ home, policy: outboundPolicy(config, log, 'registry') })
  const boxes = withSubvolumes(boxDriver({ home, supervisor, cgroups, images }), home)
  return {
    db,
    turns,
    encryptionKey: readOrCreateKey(home),
    hosting: localHosting({
      home,
      listen: config.pgListen,
      host: config.pgHost,
      ports: config.pgPorts,
      configuredBins: config.pgBins,
      source: config.postgres,
      distribution: config.postgresDirectory,
    }),
    postgres,
    pooler: poolerDriver({ home, supervisor, postgres }),
    repository,
    receiver: receiverDriver({ home, supervisor, repository, postgres }),
    backups: backupDriver({ home, jobs, repository }),
    restores: restoreDriver({ home, supervisor, jobs, repository, postgres }),
    drills: drillDriver({ home, jobs }),
    imports: importDriver({
      home,
      supervisor,
      jobs,
      postgres,
      policy: outboundPolicy(config, log, 'source of an import'),
    }),
    upgrades: upgradeDriver({ home, jobs }),
    boxes,
    checkpoints: checkpointDriver({ home, jobs, cgroups }),
    services: boxServices({ home, boxes }),
    images,
    hasPrivateNetworks: supportsPrivateNetworks,
    homeNumber: home.number,
    volumes,
    machines: machineDriver({ home, supervisor, cgroups, volumes }),
    makeCertificate: (hostname) => issueCertificate(home, hostname),
    keep: {
      backupIntervalSeconds: config.backupIntervalSeconds,
      drillIntervalSeconds: config.drillIntervalSeconds,
      scrubIntervalSeconds: config.scrubIntervalSeconds,
      pitrDays: config.pitrDays,
      deletedDays: config.deletedDays,
    },
  }
}

/** Tenants get the same message for all failures, so the log is the only place for the reason. */
function outboundPolicy({ outboundAllow, outboundDns }: Config, log: Logger, target: string): OutboundPolicy {
  return {
    allowed: outboundAllow,
    lookup: outboundLookup(outboundDns),
    onFailure: ({ host, reason }) => log.info({ host, reason }, `request to a ${target} failed`),
  }
}

/** Releases the resources of this process; the supervision tree and the state database keep running. */
export async function closeControlPlane({ home, db, workDb, turns }: ControlPlane): Promise<void> {
  await Promise.all([db.close(), workDb.close(), turns.close()])
  unregisterControlProcess(home)
}

export function openSupervisor(home: Home): Supervisor {
  return s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
}

type DatabaseParts = Pick<ControlPlane, 'config' | 'home' | 'supervisor'> & Pick<Startup, 'step'>

async function ensureDatabase({ config, home, supervisor, step }: DatabaseParts): Promise<pg.ClientConfig> {
  if (config.databaseUrl) return { connectionString: config.databaseUrl }
  step('Preparing PostgreSQL 17')
  const toolchain = await ensureToolchain('17', home, { distribution: config.postgresDirectory })
  step('Starting the state database')
  return { ...(await ensureStateDatabase({ home, supervisor, toolchain })) }
}

/** The number of steps one process runs concurrently; they mostly wait for other programs. */
const workerSlots = 8

export function startLoop(
  controlPlane: ControlPlane,
  onTurn: (turn: { kind: string; result: string; seconds: number }) => void,
): Worker {
  const { home, supervisor, world, databaseConfig, log } = controlPlane
  const tree = watchTree(home, supervisor, (err) =>
    log.warn(
      { err },
      err ? 'supervision tree exited and its restart failed; retrying' : 'supervision tree exited; restarted it',
    ),
  )
  const sampler = startSampler(world, databaseConfig)
  const changes = machineFeed(() => databaseConfig)
  const checker = startChecker(world, databaseConfig, changes)
  const watch = watchMachines(world, (err) => log.warn({ err }, 'watching machines failed; retrying later'))
  const certificates = watchCertificates(world, (err) =>
    log.warn({ err }, 'certificate renewal failed; retrying later'),
  )
  const strays = startStrayRemoval(world, (err) => log.warn({ err }, 'removal of a stray box failed; retrying later'))
  const edgeRequests = startEdgeRequests({
    db: world.db,
    listen: (onRequest) => listen(databaseConfig, edgeRequestChannel, onRequest),
    onError: (err) => log.warn({ err }, 'request of the edge failed'),
  })
  const stateBackup = startStateDumps(controlPlane)
  const tokenChanges = tokenFeed(() => databaseConfig)
  // A token that was revoked must not become valid again when the newest dump is restored.
  tokenChanges.subscribe((change) => change && stateBackup?.request())
  const worker = startWorker({
    world,
    listen: (woken) => listen(databaseConfig, workChannel, woken),
    slots: workerSlots,
    onTurn(turn) {
      onTurn(turn)
      stateBackup?.note(turn)
      if (turn.error) log.warn({ kind: turn.kind, id: turn.resourceId, err: turn.error }, 'step failed; retrying later')
    },
  })
  return {
    async stop() {
      const others = [sampler, strays, edgeRequests, stateBackup, checker, watch, certificates, tree]
      await Promise.all([worker.stop(), ...others.map((each) => each?.stop())])
      await Promise.all([changes.close(), tokenChanges.close()])
    },
  }
}

/** Backups of an external state database are left to its operator. */
function startStateDumps(controlPlane: ControlPlane): StateBackup | undefined {
  const { config, home, supervisor, databaseConfig, world, log } = controlPlane
  if (config.databaseUrl) return undefined
  const dumps = stateDumpDriver({
    home,
    jobs: jobDriver(supervisor),
    repository: world.repository,
    database: databaseConfig as StateDatabase,
    findToolchain: () => ensureToolchain('17', home, { distribution: config.postgresDirectory }),
  })
  return startStateBackup({
    dumps,
    onError: (err) => log.warn({ err }, 'state database backup failed; retrying later'),
  })
}

import type pg from 'pg'
import pino, { type Logger } from 'pino'
import { prepareFirstUse } from '../actions/first-use.ts'
import { checkpointDriver } from '../drivers/box/checkpoint/checkpoint.ts'
import { withSubvolumes } from '../drivers/box/checkpoint/subvolume.ts'
import { boxDriver } from '../drivers/box/lifecycle.ts'
import { boxServices } from '../drivers/box/service/service.ts'
import { issueCertificate } from '../drivers/host/certificate.ts'
import { cgroupDriver } from '../drivers/host/cgroup.ts'
import { forgetControlProcess, noteControlProcess } from '../drivers/host/control-process.ts'
import { type Home, openHome, readOrCreateKey, readOrCreateToken } from '../drivers/host/home.ts'
import { sweepTrash } from '../drivers/host/trash.ts'
import { imageStore } from '../drivers/image/store.ts'
import { machineDriver } from '../drivers/machine/lifecycle.ts'
import { privateNetworksPossible } from '../drivers/network/private.ts'
import { backupDriver } from '../drivers/postgres/backup/backup.ts'
import { drillDriver } from '../drivers/postgres/drill/drill.ts'
import { thisHost } from '../drivers/postgres/hosting.ts'
import { poolerDriver } from '../drivers/postgres/pooler/pooler.ts'
import { receiverDriver } from '../drivers/postgres/receiver/receiver.ts'
import { restoreDriver } from '../drivers/postgres/restore/restore.ts'
import { postgresDriver } from '../drivers/postgres/server.ts'
import { ensureToolchain } from '../drivers/postgres/toolchain/toolchain.ts'
import { fileRepository } from '../drivers/repository/directory.ts'
import { jobDriver } from '../drivers/s6/job.ts'
import { type Supervisor, s6Supervisor } from '../drivers/s6/supervisor.ts'
import { ensureStateDatabase, type StateDatabase } from '../drivers/state/database.ts'
import { stateDumpDriver } from '../drivers/state/dump.ts'
import { volumeDriver } from '../drivers/volume/lifecycle.ts'
import { newTokenText } from '../model/account/token.ts'
import { watchCertificates } from '../reconcile/app/certificate.ts'
import { startChecker } from '../reconcile/app/machine-check.ts'
import { watchMachines } from '../reconcile/app/machine-watch.ts'
import { startSampler } from '../reconcile/postgres/sampler.ts'
import { type StateBackup, startStateBackup } from '../reconcile/state-backup.ts'
import type { World } from '../reconcile/step.ts'
import { startWorker, type Worker } from '../reconcile/worker.ts'
import { machineFeed } from '../store/app/machine-feed.ts'
import { type Database, openDatabase } from '../store/db.ts'
import { listen } from '../store/listen.ts'
import { migrate } from '../store/migrate.ts'
import { workChannel } from '../store/work.ts'
import type { Config } from './config.ts'
import { watchTree } from './tree.ts'

/** What every process of the control plane stands on. */
export interface ControlPlane {
  config: Config
  home: Home
  supervisor: Supervisor
  databaseConfig: pg.ClientConfig
  db: Database
  /** For work in the background, whose commits wait for a busy disk while a request needs a connection. */
  workDb: Database
  world: World
  log: Logger
}

/** Starts what is not running yet: the supervision tree, the state database, its newest schema. */
export async function openControlPlane(config: Config): Promise<ControlPlane> {
  const home = await openHome(config.home, { uidBase: config.uidBase })
  const log = openLog(config, home)
  // Work of one that nobody waited for must not end that of all.
  process.on('unhandledRejection', (err) => log.error({ err }, 'something failed that nobody waited for'))
  noteControlProcess(home)
  sweepTrash(home) // what a crash kept from being deleted
  const supervisor = openSupervisor(home)
  await supervisor.ensureTree()
  const databaseConfig = await openState(config, home, supervisor)
  const db = openDatabase(databaseConfig)
  const migrations = await migrate(db)
  if (migrations.length > 0) log.info({ migrations }, 'brought the state database up to date')
  await prepareFirstUse(db, config.token ?? readOrCreateToken(home, newTokenText))
  const workDb = openDatabase(databaseConfig)
  const world = openWorld(config, home, supervisor, workDb)
  return { config, home, supervisor, databaseConfig, db, workDb, world, log }
}

function openWorld(config: Config, home: Home, supervisor: Supervisor, db: Database): World {
  const postgres = postgresDriver({ home, supervisor })
  const repository = fileRepository(config.repository)
  const jobs = jobDriver(supervisor)
  const cgroups = cgroupDriver()
  const volumes = volumeDriver({ home, jobs })
  const images = imageStore({ home })
  const boxes = withSubvolumes(boxDriver({ home, supervisor, cgroups, images }), home)
  return {
    db,
    encryptionKey: readOrCreateKey(home),
    hosting: thisHost({
      home,
      listen: config.pgListen,
      host: config.pgHost,
      ports: config.pgPorts,
      configuredBins: config.pgBins,
    }),
    postgres,
    pooler: poolerDriver({ home, supervisor }),
    repository,
    receiver: receiverDriver({ home, supervisor, repository, postgres }),
    backups: backupDriver({ home, jobs, repository }),
    restores: restoreDriver({ home, supervisor, jobs, repository, postgres }),
    drills: drillDriver({ home, jobs }),
    boxes,
    checkpoints: checkpointDriver({ home, jobs, cgroups }),
    services: boxServices({ home, boxes }),
    images,
    hasPrivateNetworks: privateNetworksPossible,
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

/** Gives back what `openControlPlane` took for this process alone; the tree and the state database go on. */
export async function closeControlPlane({ home, db, workDb }: ControlPlane): Promise<void> {
  await Promise.all([db.close(), workDb.close()])
  forgetControlProcess(home)
}

export function openSupervisor(home: Home): Supervisor {
  return s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
}

async function openState(config: Config, home: Home, supervisor: Supervisor): Promise<pg.ClientConfig> {
  if (config.databaseUrl) return { connectionString: config.databaseUrl }
  const state = await ensureStateDatabase({ home, supervisor, toolchain: await ensureToolchain('17', home) })
  return { ...state }
}

/** A person at a terminal reads the addresses there; the log goes to a file. Everything else collects standard output. */
function openLog(config: Config, home: Home): Logger {
  const options = { level: config.logLevel, base: { pid: process.pid }, timestamp }
  const destination = process.stdout.isTTY ? controlPlaneLog(home) : 1
  return pino(
    options,
    pino.destination({ dest: destination, mkdir: true, sync: false, minLength: 4096, periodicFlush: 100 }),
  )
}

let stampedAt = 0
let stamp = ''

/** Many lines are of one millisecond, and to write a time takes as long as half a line. */
function timestamp(): string {
  const now = Date.now()
  if (now !== stampedAt) stamp = `,"time":"${new Date(now).toISOString()}"`
  stampedAt = now
  return stamp
}

export function controlPlaneLog(home: Home): string {
  return `${home.log}/control-plane.log`
}

/** How many resources one process works on at once: steps mostly wait for other programs. */
const slots = 8

export function startLoop(
  controlPlane: ControlPlane,
  onTurn: (turn: { kind: string; result: string; seconds: number }) => void,
): Worker {
  const { home, supervisor, world, databaseConfig, log } = controlPlane
  const tree = watchTree(home, supervisor, (err) => log.warn({ err }, 'the supervision tree was gone'))
  const sampler = startSampler(world, databaseConfig)
  const changes = machineFeed(() => databaseConfig)
  const checker = startChecker(world, databaseConfig, changes)
  const watch = watchMachines(world, (err) => log.warn({ err }, 'will look after machines later'))
  const certificates = watchCertificates(world, (err) => log.warn({ err }, 'will make certificates anew later'))
  const stateBackup = startStateDumps(controlPlane)
  const worker = startWorker({
    world,
    listen: (woken) => listen(databaseConfig, workChannel, woken),
    slots,
    onTurn(turn) {
      onTurn(turn)
      stateBackup?.note(turn)
      if (turn.error) log.warn({ kind: turn.kind, id: turn.resourceId, err: turn.error }, 'will look again later')
    },
  })
  return {
    async stop() {
      const others = [sampler, stateBackup, checker, watch, certificates, tree]
      await Promise.all([worker.stop(), ...others.map((each) => each?.stop())])
      await changes.close()
    },
  }
}

/** An external state database is backed up by whoever runs it. */
function startStateDumps(controlPlane: ControlPlane): StateBackup | undefined {
  const { config, home, supervisor, databaseConfig, world, log } = controlPlane
  if (config.databaseUrl) return undefined
  const dumps = stateDumpDriver({
    home,
    jobs: jobDriver(supervisor),
    repository: world.repository,
    database: databaseConfig as StateDatabase,
    findToolchain: () => ensureToolchain('17', home),
  })
  return startStateBackup({ dumps, onError: (err) => log.warn({ err }, 'will back up the state database later') })
}

// Checks the machine for the requirements of the platform. It changes nothing: it creates no home and copies no toolchain.
import { setTimeout as sleep } from 'node:timers/promises'
import { nearestExisting } from '../../drivers/host/filesystem.ts'
import type { Config } from '../config.ts'
import { checkClusterVersions } from './cluster.ts'
import { checkDatabase, checkListen, checkTls } from './connection.ts'
import { type Check, type Finding, installCommand } from './finding.ts'
import {
  checkClock,
  checkClusterIsolation,
  checkControlGroups,
  checkMemory,
  checkOpenFiles,
  checkUser,
  checkUserNamespaces,
} from './host.ts'
import { checkExtensions, checkKernel, checkNode, checkReadline, checkToolchain, programChecks } from './program.ts'
import { sandboxChecks } from './sandbox.ts'
import {
  checkDamagedData,
  checkDisk,
  checkHome,
  checkReflink,
  checkRepository,
  checkRepositoryDisk,
  checkSecretFile,
  checkStorage,
} from './storage.ts'

export interface DoctorReport {
  checks: DoctorCheck[]
  /** The command that installs all missing packages; null if none is missing. */
  install: string | null
}

export interface DoctorCheck extends Finding {
  name: string
  /** Whether the level is `ok`. */
  ok: boolean
}

// The report must be complete within two seconds, even when a check hangs.
const checkTimeoutMs = 1_800

export async function doctor(config: Config): Promise<DoctorReport> {
  const checks = Object.entries(listChecks(config)).map(async ([name, check]) => {
    const finding = await runCheck(check)
    return { name, ok: finding.level === 'ok', ...finding }
  })
  const found = await Promise.all(checks)
  const missing = [...new Set(found.flatMap(({ install = [] }) => install))]
  return { checks: found, install: missing.length === 0 ? null : installCommand(...missing) }
}

function listChecks(config: Config): Record<string, Check> {
  return {
    kernel: checkKernel,
    Node: checkNode,
    ...programChecks,
    libreadline8: checkReadline,
    user: checkUser,
    'PostgreSQL 17': () => checkToolchain('17', config, isNeededForState(config)),
    'PostgreSQL 16': () => checkToolchain('16', config, false),
    'cluster versions': () => checkClusterVersions(config),
    extensions: () => checkExtensions(config),
    'user namespaces': checkUserNamespaces,
    'control groups': checkControlGroups,
    'cluster isolation': checkClusterIsolation,
    ...sandboxChecks,
    home: () => checkHome(config.home),
    repository: () => checkRepository(config),
    'disk space': () => checkDisk(config.home),
    'repository disk space': () => checkRepositoryDisk(config),
    'damaged data': () => checkDamagedData(config.home),
    'copy on write': () => checkReflink(config.home),
    'size limits': () => checkStorage(nearestExisting(config.home)),
    memory: checkMemory,
    'open files': checkOpenFiles,
    clock: checkClock,
    'platform API': () => checkListen('api', config.apiListen, config.home),
    'sandbox API': () => checkListen('sandbox', config.sandboxListen, config.home),
    edge: () => checkListen('edge', config.edgeListen, config.home),
    TLS: () => checkTls(config),
    token: () => checkSecretFile(`${config.home}/token`, 'Anyone who can read it has full control of this platform.'),
    key: () => checkSecretFile(`${config.home}/key`, 'Anyone who can read it can decrypt the stored secrets.'),
    'state database': () => checkDatabase(config.databaseUrl),
  }
}

/** The state database uses the bundled PostgreSQL also where clusters use a configured one. */
function isNeededForState({ databaseUrl, pgBins }: Config): boolean {
  return databaseUrl === undefined && pgBins[17] === undefined
}

async function runCheck(check: Check): Promise<Finding> {
  const timeout = sleep<Finding>(
    checkTimeoutMs,
    { level: 'problem', found: `no result within ${checkTimeoutMs / 1000} s` },
    { ref: false },
  )
  try {
    return await Promise.race([check(), timeout])
  } catch (error) {
    return { level: 'problem', found: `check failed: ${(error as Error).message}` }
  }
}

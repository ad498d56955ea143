// Looks at the machine as the platform would find it. Nothing that it does stays: no home is made, no toolchain copied.
import { setTimeout as sleep } from 'node:timers/promises'
import { nearestExisting } from '../../drivers/host/facts.ts'
import type { Config } from '../config.ts'
import { checkDatabase, checkListen, checkTls } from './connection.ts'
import type { Check, Finding } from './finding.ts'
import { checkClock, checkControlGroups, checkMemory, checkOpenFiles, checkUser, checkUserNamespaces } from './host.ts'
import { checkNode, checkReadline, checkToolchain, programChecks } from './program.ts'
import { sandboxChecks } from './sandbox.ts'
import { checkDisk, checkHome, checkReflink, checkRepository, checkSecretFile, checkStorage } from './storage.ts'

export interface DoctorReport {
  checks: DoctorCheck[]
}

export interface DoctorCheck extends Finding {
  name: string
  /** The level is `ok`. */
  ok: boolean
}

// The whole must answer within two seconds, whatever hangs.
const checkMillis = 1_800

export async function doctor(config: Config): Promise<DoctorReport> {
  const checks = Object.entries(listChecks(config)).map(async ([name, check]) => {
    const finding = await answerOf(check)
    return { name, ok: finding.level === 'ok', ...finding }
  })
  return { checks: await Promise.all(checks) }
}

function listChecks(config: Config): Record<string, Check> {
  return {
    Node: checkNode,
    ...programChecks,
    libreadline8: checkReadline,
    user: checkUser,
    'PostgreSQL 17': () => checkToolchain('17', config, config.databaseUrl === undefined),
    'PostgreSQL 16': () => checkToolchain('16', config, false),
    'user namespaces': checkUserNamespaces,
    'control groups': checkControlGroups,
    ...sandboxChecks,
    home: () => checkHome(config.home),
    repository: () => checkRepository(config),
    'disk space': () => checkDisk(config.home),
    'copy on write': () => checkReflink(config.home),
    'sandbox storage': () => checkStorage(nearestExisting(config.home)),
    memory: checkMemory,
    'open files': checkOpenFiles,
    clock: checkClock,
    'platform API': () => checkListen('api', config.apiListen, config.home),
    'sandbox API': () => checkListen('sandbox', config.sandboxListen, config.home),
    edge: () => checkListen('edge', config.edgeListen, config.home),
    TLS: () => checkTls(config),
    token: () => checkSecretFile(`${config.home}/token`, 'Whoever can read it is the administrator of this platform.'),
    key: () => checkSecretFile(`${config.home}/key`, 'Whoever can read it can decrypt the stored secrets.'),
    'state database': () => checkDatabase(config.databaseUrl),
  }
}

async function answerOf(check: Check): Promise<Finding> {
  const late = sleep<Finding>(
    checkMillis,
    { level: 'problem', found: `no answer within ${checkMillis / 1000} s` },
    { ref: false },
  )
  try {
    return await Promise.race([check(), late])
  } catch (error) {
    return { level: 'problem', found: `could not be checked: ${(error as Error).message}` }
  }
}

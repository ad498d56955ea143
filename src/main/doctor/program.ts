import { existsSync } from 'node:fs'
import { release } from 'node:os'
import { findLibrary, type HostCommand, inspectCommand, parseVersion } from '../../drivers/host/facts.ts'
import type { Home } from '../../drivers/host/home.ts'
import { run } from '../../drivers/host/process.ts'
import {
  ensureToolchain,
  findDistributionBin,
  findInstalledShare,
  findPackage,
} from '../../drivers/postgres/toolchain/toolchain.ts'
import { hasExtension } from '../../drivers/postgres/toolchain/tools.ts'
import { type PostgresMajor, postgresMajors } from '../../model/postgres/cluster.ts'
import { findExtensionPackage, offeredExtensions } from '../../model/postgres/extension.ts'
import type { Toolchain } from '../../model/postgres/toolchain.ts'
import { type Config, installationsOf } from '../config.ts'
import { type Check, type Finding, installCommand, ok, problem, warning } from './finding.ts'
import { compareVersions, judgeVersion, type Part, tested } from './version.ts'

export function checkNode(): Finding {
  const version = process.version.slice(1)
  const found = `${version} at ${process.execPath}`
  const fix = 'npm ci, then start Berth with ./berth'
  if (compareVersions(version, '24', 1) < 0) return problem(found, 'Berth needs Node 24 or newer.', fix)
  return judgeVersion('Node', version, found, fix)
}

export function checkKernel(): Finding {
  const version = parseVersion(release())
  return judgeVersion(
    'kernel',
    version,
    release(),
    `${installCommand(`linux-image-${debianArchitecture()}`)}, and reboot`,
  )
}

function debianArchitecture(): string {
  return process.arch === 'arm64' ? 'arm64' : 'amd64'
}

interface Program {
  package: Exclude<Part, 'Node' | 'kernel' | `PostgreSQL ${PostgresMajor}`>
  command: HostCommand
  missing: Finding['level']
  cost: string
}

const programs: Program[] = [
  {
    package: 's6',
    command: 's6-svscan',
    missing: 'problem',
    cost: 'Without s6 no process can be supervised, and the platform does not start.',
  },
  {
    package: 'pgbouncer',
    command: 'pgbouncer',
    missing: 'warning',
    cost: 'Without pgbouncer, Postgres clusters have no pooled endpoint.',
  },
  {
    package: 'bubblewrap',
    command: 'bwrap',
    missing: 'warning',
    cost: 'Without bubblewrap, clusters, apps and sandboxes run as plain processes that are not isolated from this machine.',
  },
  {
    package: 'iproute2',
    command: 'ip',
    missing: 'warning',
    cost: 'Without iproute2, apps and sandboxes have no network.',
  },
  {
    package: 'nftables',
    command: 'nft',
    missing: 'warning',
    cost: 'Without nftables, apps and sandboxes have no network, and only namespaces keep clusters from the network of this machine.',
  },
  {
    package: 'dnsmasq-base',
    command: 'dnsmasq',
    missing: 'warning',
    cost: 'Without dnsmasq-base, network policies of sandboxes cannot restrict host names.',
  },
  {
    package: 'openssl',
    command: 'openssl',
    missing: 'problem',
    cost: 'Without openssl no certificates can be made, and no cluster starts.',
  },
  {
    package: 'perl',
    command: 'perl',
    missing: 'problem',
    cost: 'Without Perl, clusters, apps and sandboxes cannot be started.',
  },
  {
    package: 'util-linux',
    command: 'unshare',
    missing: 'problem',
    cost: 'Without util-linux, clusters, apps and sandboxes cannot be started.',
  },
  {
    package: 'e2fsprogs',
    command: 'mkfs.ext4',
    missing: 'warning',
    cost: 'Without e2fsprogs, the size of volumes is not enforced.',
  },
  {
    package: 'xfsprogs',
    command: 'mkfs.xfs',
    missing: 'warning',
    cost: 'Without xfsprogs there are no storage pools and no project quotas.',
  },
  {
    package: 'btrfs-progs',
    command: 'btrfs',
    missing: 'ok',
    cost: 'It is needed only for a home on Btrfs.',
  },
  { package: 'git', command: 'git', missing: 'ok', cost: 'It is needed only to update a checkout.' },
]

/** A check per Debian package that provides a program. */
export const programChecks: Record<string, Check> = Object.fromEntries(
  programs.map((program) => [program.package, () => checkProgram(program)]),
)

async function checkProgram(program: Program): Promise<Finding> {
  const found = await inspectCommand(program.command)
  const fix = installCommand(program.package)
  if (found) {
    const text = found.version ? `${found.version} at ${found.path}` : found.path
    return judgeVersion(program.package, found.version, text, fix)
  }
  const { versions } = tested[program.package]
  if (program.missing === 'ok') return { ...ok(`not installed. ${program.cost}`), tested: versions }
  const facts = { level: program.missing, found: 'not installed', cost: program.cost }
  return { ...facts, fix, tested: versions, install: [program.package] }
}

export function checkReadline(): Finding {
  const path = findLibrary('libreadline.so.8')
  if (path) return ok(path)
  const cost = 'Without it, the tools that back up Postgres clusters may not start.'
  return { ...warning('not installed', cost, installCommand('libreadline8')), install: ['libreadline8'] }
}

/** The installation that a new cluster gets. */
export async function checkToolchain(major: PostgresMajor, config: Config, required: boolean): Promise<Finding> {
  const options = installationsOf(major, config)
  const packaged = (await findPackage(major))?.version
  const copy = `${config.home}/toolchain/postgres-${packaged}`
  const isFromSystem = options.configuredBin !== undefined || usesDistribution(major, config)
  if (!isFromSystem && packaged && !existsSync(`${copy}/manifest.json`)) {
    const version = packaged.split('.').slice(0, 2).join('.')
    const found = `${version} from npm; copied into the home on first use`
    return judgeVersion(`PostgreSQL ${major}`, version, found, 'npm ci')
  }
  try {
    // Does not copy anything here, because it is installed or the copy exists; it uses no other field of the home.
    const toolchain = await ensureToolchain(major, { toolchain: `${config.home}/toolchain` } as Home, options)
    await run(`${toolchain.bin}/postgres`, ['--version'], { timeoutSeconds: 1.5 })
    return judgeVersion(`PostgreSQL ${major}`, toolchain.version, describeToolchain(toolchain), 'npm ci')
  } catch (error) {
    return {
      level: required ? 'problem' : 'warning',
      found: (error as Error).message,
      cost: required
        ? 'The platform needs it for its state database and does not start.'
        : `Clusters with PostgreSQL ${major} cannot be created.`,
      fix: `npm ci, or ${installCommand(`postgresql-${major}`)}`,
    }
  }
}

/** Extensions of the distribution, which the PostgreSQL from npm does not have. */
export function checkExtensions(config: Config): Finding {
  const installed = postgresMajors.flatMap((major) => {
    const share = findInstalledShare(major, installationsOf(major, config))
    return share === undefined ? [] : [{ major, share }]
  })
  const newest = postgresMajors.at(-1)!
  const missing =
    installed.length === 0
      ? offeredExtensions.map((name) => findExtensionPackage(name, newest)!)
      : installed.flatMap(({ major, share }) =>
          offeredExtensions
            .filter((name) => !hasExtension({ share }, name))
            .map((name) => findExtensionPackage(name, major)!),
        )
  if (missing.length === 0) {
    const places = installed.map(({ major, share }) => `PostgreSQL ${major} with ${share}`)
    return ok(`${offeredExtensions.join(', ')}, in ${places.join(' and ')}`)
  }
  const found = installed.length === 0 ? 'none, because PostgreSQL is from npm' : `without ${missing.join(', ')}`
  return warning(
    found,
    'Clusters cannot use PostGIS (`postgis_enabled`) or pgvector.',
    `${installCommand(...missing)}, where the distribution has these packages (Debian 13), and restart Berth`,
  )
}

function describeToolchain({ version, source, bin }: Toolchain): string {
  return `${version} from ${source === 'npm' ? 'npm' : 'the system'}, in ${bin}`
}

function usesDistribution(major: PostgresMajor, { postgres, postgresDirectory }: Config): boolean {
  return postgres === 'distribution' && findDistributionBin(major, postgresDirectory) !== undefined
}

import { existsSync } from 'node:fs'
import { findLibrary, type HostCommand, inspectCommand } from '../../drivers/host/facts.ts'
import type { Home } from '../../drivers/host/home.ts'
import { isExecutable, run } from '../../drivers/host/process.ts'
import { ensureToolchain, findInstalledShare, findPackage } from '../../drivers/postgres/toolchain/toolchain.ts'
import { hasExtension } from '../../drivers/postgres/toolchain/tools.ts'
import { type PostgresMajor, postgresMajors } from '../../model/postgres/cluster.ts'
import { findExtensionPackage, offeredExtensions } from '../../model/postgres/extension.ts'
import type { Toolchain } from '../../model/postgres/toolchain.ts'
import type { Config } from '../config.ts'
import { asRoot, type Check, type Finding, ok, problem, warning } from './finding.ts'

function installCommand(debianPackage: string): string {
  return asRoot(`apt-get install -y ${debianPackage}`)
}

export function checkNode(): Finding {
  const found = `${process.version.slice(1)} at ${process.execPath}`
  if (Number.parseInt(process.version.slice(1), 10) >= 24) return ok(found)
  return problem(found, 'Berth needs Node 24 or newer.', 'npm ci, then start Berth with ./berth')
}

interface Program {
  package: string
  command: HostCommand
  missing: 'warning' | 'problem'
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
]

/** A check per Debian package that provides a program. */
export const programChecks: Record<string, Check> = Object.fromEntries(
  programs.map((program) => [program.package, () => checkProgram(program)]),
)

async function checkProgram(program: Program): Promise<Finding> {
  const found = await inspectCommand(program.command)
  if (found) return ok(found.version ? `${found.version} at ${found.path}` : found.path)
  return { level: program.missing, found: 'not installed', cost: program.cost, fix: installCommand(program.package) }
}

export function checkReadline(): Finding {
  const path = findLibrary('libreadline.so.8')
  if (path) return ok(path)
  return warning(
    'not installed',
    'Without it, the tools that back up Postgres clusters may not start.',
    installCommand('libreadline8'),
  )
}

export async function checkToolchain(major: PostgresMajor, config: Config, required: boolean): Promise<Finding> {
  const packaged = (await findPackage(major))?.version
  const copy = `${config.home}/toolchain/postgres-${packaged}`
  if (!hasDistribution(major) && packaged && !existsSync(`${copy}/manifest.json`)) {
    return ok(`${packaged.split('.').slice(0, 2).join('.')} from npm; copied into the home on first use`)
  }
  try {
    // Does not copy anything here, because the distribution has one or the copy exists; it uses no other field of the home.
    const toolchain = await ensureToolchain(major, { toolchain: `${config.home}/toolchain` } as Home)
    await run(`${toolchain.bin}/postgres`, ['--version'], { timeoutSeconds: 1.5 })
    return ok(describeToolchain(toolchain))
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
    const share = findInstalledShare(major, config.pgBins[major])
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
  if (missing.length === 0) return ok(`${offeredExtensions.join(', ')}`)
  const found = installed.length === 0 ? 'none, because PostgreSQL is from npm' : `without ${missing.join(', ')}`
  return warning(
    found,
    'Clusters cannot use PostGIS (`postgis_enabled`) or pgvector.',
    `${installCommand(missing.join(' '))}, where the distribution has these packages (Debian 13), and restart Berth`,
  )
}

function describeToolchain({ version, source, bin }: Toolchain): string {
  return `${version} from ${source === 'npm' ? 'npm' : 'the system'}, in ${bin}`
}

function hasDistribution(major: PostgresMajor): boolean {
  return isExecutable(`/usr/lib/postgresql/${major}/bin/postgres`)
}

// The commands that act on the platform of this machine instead of calling its API. Each imports its code when it runs.
import type { Command } from 'commander'
import { addExamples, type Cli } from '../cli/command.ts'
import { UsageError } from '../cli/errors.ts'
import { block, type Cell, formatTime, printResult, sanitize, type Terminal, table } from '../cli/output.ts'
import { type Config, describeConfig, readConfig } from './config.ts'
import type { DoctorReport } from './doctor/doctor.ts'
import { exitCodes } from './error-report.ts'
import type { LogTarget } from './log.ts'
import type { StatusReport } from './status.ts'

export function addLifecycleCommands(program: Command, cli: Cli): void {
  const up = program
    .command('up')
    .description('run the platform in the foreground; workloads keep running when it exits')
    .option('--detach', 'run it in the background and return when the API answers')
    .option('--log-file', 'write the log to a file in the home, also without a terminal')
    .action((options: UpOptions) => runUp(cli.terminal(), options))
  addExamples(up, 'berth up', 'berth up --detach', 'BERTH_HOME=/srv/berth BERTH_API_LISTEN=127.0.0.1:8080 berth up')

  const down = program
    .command('down')
    .description('stop the platform and all workloads; data is kept')
    .action(async () => {
      const config = getConfig()
      await (await import('./down.ts')).down(config)
      printResult(cli.terminal(), {}, () => `Everything in ${sanitize(config.home)} is stopped.`)
    })
  addExamples(down, 'berth down')

  const worker = program
    .command('worker')
    .description('run an additional worker on the state database of "berth up"')
    .action(async () => {
      const { openStartup } = await import('./startup.ts')
      const startup = openStartup(chooseLog(cli.terminal(), false))
      await (await import('./worker.ts')).worker(getConfig(), startup)
    })
  addExamples(worker, 'berth worker')

  const install = program
    .command('install')
    .description('write systemd units that start the platform at boot')
    .option('--print', 'print the units instead of writing them')
    .option('--directory <directory>', 'directory to write them to')
    .action((options: { print?: true; directory?: string }) => runInstall(cli.terminal(), options))
  addExamples(install, 'berth install --print', 'sudo berth install')
}

export function addInspectionCommands(program: Command, cli: Cli): void {
  const status = program
    .command('status')
    .description('show the services of the platform; exits with 1 when the API does not respond')
    .action(async () => {
      const report = await (await import('./status.ts')).status(getConfig())
      const terminal = cli.terminal()
      printResult(terminal, report, () => statusText(report, terminal.colors))
      if (!report.answering) process.exitCode = exitCodes.refused
    })
  addExamples(status, 'berth status', 'berth status --json')

  const doctor = program
    .command('doctor')
    .description('check the requirements of the platform on this machine; exits with 1 when there is a problem')
    .action(async () => {
      const report = await (await import('./doctor/doctor.ts')).doctor(getConfig())
      const terminal = cli.terminal()
      printResult(terminal, report, () => doctorText(report, terminal.colors))
      if (report.checks.some(({ level }) => level === 'problem')) process.exitCode = exitCodes.refused
    })
  addExamples(doctor, 'berth doctor', 'berth doctor --json')

  const config = program
    .command('config')
    .description('show every setting with its value and meaning; secrets are hidden')
    .action(() => {
      const terminal = cli.terminal()
      const described = describeConfig()
      printResult(terminal, described, () => configText(described, terminal.colors))
      getConfig() // invalid values are shown as they are, and then reported
    })
  addExamples(config, 'berth config', 'BERTH_LOG_LEVEL=debug berth config --json')
}

interface UpOptions {
  detach?: boolean
  logFile?: boolean
}

async function runUp(terminal: Terminal, { detach = false, logFile = false }: UpOptions): Promise<void> {
  const config = getConfig()
  const { announcement, hasSystemd, openStartup, readyLine } = await import('./startup.ts')
  const startup = openStartup(chooseLog(terminal, logFile))
  if (!detach) return (await import('./up.ts')).up(config, startup)
  startup.step('Starting the control plane in the background')
  const { isStarted, addresses } = await (await import('./detach.ts')).upDetached(config)
  const headline = isStarted ? readyLine(startup.seconds()) : 'Berth runs already.'
  const report = { started: isStarted, home: config.home, ...addresses }
  const started = { config, addresses, headline, isDetached: true, hasSystemd: hasSystemd() }
  printResult(terminal, report, () => announcement(started))
}

/** A person at a terminal sees plain lines, and programs read JSON. */
function chooseLog({ json }: Terminal, isToFile: boolean): LogTarget {
  if (isToFile) return 'file'
  return process.stdout.isTTY && !json ? 'terminal' : 'output'
}

async function runInstall(terminal: Terminal, options: { print?: true; directory?: string }): Promise<void> {
  const { install, nextCommands } = await import('./install.ts')
  const { print = false, directory } = options
  const lines = await install(getConfig(), { print, ...(directory ? { directory } : {}) })
  const next = print ? [] : ['', 'Now run:', ...nextCommands.map((command) => `  ${command}`)]
  printResult(terminal, lines, () => [...lines, ...next].join('\n'))
}

function statusText(report: StatusReport, colors: boolean): string {
  const overview: [string, Cell][] = [
    ['home', report.home],
    ['answering', report.answering],
    ['platform API', report.api],
    ['sandbox API', report.sandbox],
    ['edge', report.edge],
    ['supervision', report.tree],
  ]
  const rows = report.services.map(({ name, state, pid, since }) => [name, state, pid, formatTime(since)])
  const services = rows.length === 0 ? [] : ['', table(['SERVICE', 'STATE', 'PID', 'SINCE'], rows, colors)]
  return [block(overview, colors), ...services].join('\n')
}

function doctorText({ checks, install }: DoctorReport, colors: boolean): string {
  const rows = checks.map(({ level, name, found, tested }) => [level, name, found, tested?.join(', ')])
  const remedies = checks
    .filter(({ level }) => level !== 'ok')
    .map(({ name, level, cost, fix }) => {
      return [`\n${level}: ${name}`, ...(cost ? [`  ${cost}`] : []), ...(fix ? [`  fix: ${fix}`] : [])].join('\n')
    })
  const packages = install ? [`\nTo install all missing packages:\n  ${install}`] : []
  return [table(['LEVEL', 'CHECK', 'FOUND', 'TESTED'], rows, colors), ...remedies, ...packages].join('\n')
}

function configText(described: ReturnType<typeof describeConfig>, colors: boolean): string {
  const rows = described.map(({ name, value, set, about }) => [name, value, set ? 'environment' : 'default', about])
  return table(['SETTING', 'VALUE', 'FROM', 'ABOUT'], rows, colors)
}

/** Reports an invalid setting as a usage error. */
export function getConfig(): Config {
  try {
    return readConfig()
  } catch (error) {
    throw new UsageError((error as Error).message)
  }
}

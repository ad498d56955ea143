// The containers of a machine: their directories on the host, and what their supervisor (container.pl) reports.
import { existsSync, readdirSync } from 'node:fs'
import type { ContainerPhase } from '../../model/app/container/config.ts'
import { findProgram, findReaper, findSupervised } from '../box/process.ts'
import { readTextIfPresent } from '../host/file.ts'
import { writeControl } from '../s6/control.ts'
import type { ContainerStatus } from './driver.ts'
import type { MachinePaths } from './paths.ts'

export function containerPaths({ directory }: MachinePaths, name: string) {
  const own = `${directory}/container/${name}`
  return { directory: own, config: `${own}/box.conf`, program: `${own}/program` }
}

/** The names of the directories, which may belong to an earlier version. */
export function listContainerDirectories({ directory }: MachinePaths): string[] {
  return existsSync(`${directory}/container`) ? readdirSync(`${directory}/container`) : []
}

/** Undefined when no supervisor of containers runs. It writes the file when it starts, and removes that of an earlier run. */
export function readContainers(paths: MachinePaths): ContainerStatus[] | undefined {
  const text = readTextIfPresent(paths.containers)
  if (text === undefined || findSupervised(paths.service) === undefined) return undefined
  return text.split('\n').slice(0, -1).map(parseStatus)
}

function parseStatus(line: string): ContainerStatus {
  const [name, phase, run, since, health, exitCode, restarts] = line.split(' ') as [string, ...string[]]
  return {
    name,
    state: phase as ContainerPhase,
    run: Number(run),
    since: Number(since),
    ...(health !== '-' && { health: health as 'healthy' | 'unhealthy' }),
    ...(exitCode !== '-' && { exitCode: Number(exitCode) }),
    restarts: Number(restarts),
  }
}

/** A process in the network namespace of a running machine, and the one that runs its program or supervises its containers. */
export function findRunning(paths: MachinePaths): { first: number; program: number } | undefined {
  if (!readContainers(paths)) return findProgram(paths.service)
  const supervisor = findSupervised(paths.service)
  return supervisor === undefined ? undefined : { first: supervisor, program: supervisor }
}

/** The first processes of its pid namespaces. */
export function findReapers(paths: MachinePaths): number[] {
  const names = readContainers(paths)?.map(({ name }) => name) ?? [undefined]
  return names.map((name) => findReaper(paths.service, name)).filter((pid) => pid !== undefined)
}

/** The programs that get signals. */
export function findPrograms(paths: MachinePaths): number[] {
  const names = readContainers(paths)?.map(({ name }) => name) ?? [undefined]
  return names.flatMap((name) => findProgram(paths.service, name)?.program ?? [])
}

/** Tells the supervisor what the checks of this run of a container found. */
export function reportHealth(paths: MachinePaths, name: string, run: number, health: 'healthy' | 'unhealthy'): void {
  writeControl(`${paths.directory}/control`, `health ${name} ${run} ${health}\n`)
}

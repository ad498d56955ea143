// Validates containers. Every error is a 400 that names the field.
import { BerthError, badRequest } from '../../errors.ts'
import { parseImageReference } from '../../image.ts'
import type { MachineConfig } from '../machine-config.ts'
import { checkEnvironment } from '../machine-config-env.ts'
import { checkFile } from '../machine-config-file.ts'
import { normalizeStop } from '../machine-config-stop.ts'
import { type ContainerHealthcheck, type MachineContainer, maxContainers } from './config.ts'
import type { RestartPolicy } from './program.ts'

const maxHealthchecks = 10
const maxDependencies = 64

/** Also the name of a directory of the host. */
const namePattern = /^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$/

/** Returns the form to store. */
export function normalizeContainers(
  field: string,
  containers: MachineContainer[],
  mayUseHost: boolean,
): MachineContainer[] {
  if (containers.length > maxContainers) throw badRequest(`${field} has more than ${maxContainers} entries`)
  const names = containers.map(({ name }) => name)
  const kept = containers.map((container, at) => {
    if (!namePattern.test(container.name))
      throw badRequest(`${field}.${at}.name must be up to 63 letters, digits, dots, dashes and underscores`)
    if (names.indexOf(container.name) !== at)
      throw badRequest(`${field}.${at}.name ${container.name} is the name of another container`)
    return normalizeContainer(`${field}.${at}`, container, mayUseHost)
  })
  for (const [at, container] of kept.entries()) checkDependencies(`${field}.${at}.depends_on`, container, kept)
  refuseCycle(field, kept)
  return kept
}

function normalizeContainer(field: string, container: MachineContainer, mayUseHost: boolean): MachineContainer {
  refuseMounts(field, container)
  checkImage(`${field}.image`, container.image, mayUseHost)
  const { name, image, exec, entrypoint, cmd, user, env, secrets, env_from, files } = container
  const { restart, stop, depends_on, healthchecks } = container
  for (const word of [...(exec ?? []), ...(entrypoint ?? []), ...(cmd ?? []), user ?? '']) refuseNul(field, word)
  checkEnvironment(`${field}.env`, env)
  for (const [at, { env_var }] of (secrets ?? []).entries())
    checkEnvironment(`${field}.secrets.${at}`, { [env_var]: '' })
  for (const [at, { env_var }] of (env_from ?? []).entries())
    checkEnvironment(`${field}.env_from.${at}`, { [env_var]: '' })
  for (const [at, file] of (files ?? []).entries()) checkFile(`${field}.files.${at}`, file)
  if (restart) checkRestart(`${field}.restart`, restart)
  checkHealthchecks(`${field}.healthchecks`, healthchecks ?? [])
  const sent = {
    name,
    image,
    exec,
    entrypoint,
    cmd,
    user,
    env,
    secrets,
    env_from,
    files,
    restart,
    depends_on,
    healthchecks,
  }
  const stored = Object.fromEntries(Object.entries(sent).filter(([, value]) => value !== undefined)) as MachineContainer
  return stop ? { ...stored, stop: normalizeStop(`${field}.stop`, stop) } : stored
}

/** The schema does not have the field, because no value of it is possible. */
function refuseMounts(field: string, container: MachineContainer & { mounts?: unknown[] }): void {
  if (container.mounts?.length) throw badRequest(`${field}.mounts is not possible here: containers have no volumes`)
}

function checkImage(field: string, text: string, mayUseHost: boolean): void {
  try {
    parseImageReference(text, mayUseHost)
  } catch (error) {
    if (error instanceof BerthError) throw badRequest(error.message.replace(/^config\.image/, field))
    throw error
  }
}

function refuseNul(field: string, word: string): void {
  if (word.includes('\0')) throw badRequest(`${field} must not contain NUL characters`)
}

export function checkRestart(field: string, { policy }: RestartPolicy): void {
  if (policy === 'spot-price')
    throw badRequest(`${field}.policy spot-price is not possible here: there are no spot prices`)
}

function checkHealthchecks(field: string, checks: ContainerHealthcheck[]): void {
  if (checks.length > maxHealthchecks) throw badRequest(`${field} has more than ${maxHealthchecks} entries`)
  const names = checks.map(({ name }) => name)
  for (const [at, { name, http, tcp, exec }] of checks.entries()) {
    if (name === '' || name.length > 100 || name.includes('\0'))
      throw badRequest(`${field}.${at}.name must have from 1 to 100 characters`)
    if (names.indexOf(name) !== at) throw badRequest(`${field}.${at}.name ${name} is the name of another health check`)
    if ([http, tcp, exec].filter(Boolean).length !== 1)
      throw badRequest(`${field}.${at} must have one of http, tcp and exec`)
    if (exec && !exec.command[0]) throw badRequest(`${field}.${at}.exec.command is required`)
    for (const word of exec?.command ?? []) refuseNul(`${field}.${at}.exec.command`, word)
  }
}

function checkDependencies(field: string, { name, depends_on = [] }: MachineContainer, all: MachineContainer[]): void {
  if (depends_on.length > maxDependencies) throw badRequest(`${field} has more than ${maxDependencies} entries`)
  for (const [at, dependency] of depends_on.entries()) {
    const found = all.find((other) => other.name === dependency.name)
    if (!found) throw badRequest(`${field}.${at}.name ${dependency.name} is not the name of a container`)
    if (found.name === name) throw badRequest(`${field}.${at}.name ${name} is the container itself`)
    if (dependency.condition === 'healthy' && !found.healthchecks?.length)
      throw badRequest(`${field}.${at} waits for ${found.name} to be healthy, which has no healthchecks`)
  }
}

function refuseCycle(field: string, containers: MachineContainer[]): void {
  let open = containers
  while (open.length > 0) {
    const names = new Set(open.map(({ name }) => name))
    const waiting = open.filter(({ depends_on = [] }) => depends_on.some(({ name }) => names.has(name)))
    if (waiting.length === open.length)
      throw badRequest(`${field} depend on each other in a circle: ${open.map(({ name }) => name).join(', ')}`)
    open = waiting
  }
}

/** Fields of the machine that would say the same as fields of its containers. */
export function refuseProgram(config: MachineConfig): void {
  const { init, files, mounts, processes } = config
  const given: [boolean | undefined, string, string][] = [
    [Boolean(processes?.length), 'processes', 'give the fields to the containers'],
    [Boolean(init?.exec?.length), 'init.exec', 'give exec to a container'],
    [Boolean(init?.entrypoint?.length), 'init.entrypoint', 'give entrypoint to a container'],
    [Boolean(init?.cmd?.length), 'init.cmd', 'give cmd to a container'],
    [Boolean(files?.length), 'files', 'give files to the containers'],
    [Boolean(mounts?.length), 'mounts', 'containers have no volumes'],
  ]
  for (const [isGiven, field, instead] of given)
    if (isGiven) throw badRequest(`config.${field} is not possible together with config.containers: ${instead}`)
}

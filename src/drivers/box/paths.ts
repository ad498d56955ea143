// The paths of a box on the host. The directories named here belong to the host; inside them only the leaves `supervise`,
// `event`, `state`, `stdout` and `stderr` belong to the box, so that a box can never replace a directory that the host
// opens with a link.
import { type InnerPaths, innerPaths } from '../../model/sandbox/inner-paths.ts'
import { type Home, uidsPerBox } from '../host/home.ts'
import { isRoot } from '../host/process.ts'

export interface BoxPaths {
  directory: string
  /** Overlay layers that the box writes: over the base, and over `/usr` of the host. */
  upper: string
  work: string
  upperUsr: string
  workUsr: string
  /** The mount point of the root filesystem, in the mount namespace of the box only. */
  root: string
  /** Service definitions, read-only for the box. */
  service: string
  /** `run/<service>/{supervise,event,state}`, written by s6 in the box. */
  run: string
  /** `log/<service>/{stdout,stderr}`. */
  log: string
  /** One directory per checkpoint, with the copied layers. */
  checkpoints: string
  /** `/.sprite/checkpoints` in the box: an empty directory as mount point for each visible checkpoint. */
  views: string
  /** `/.sprite/policy` in the box, read-only. */
  policy: string
  /** `/.sprite/inside` in the box, read-only; it holds the socket of the platform API. */
  inside: string
  /** The configuration that `start.pl` reads at the next start. */
  config: string
  /** The name of the box in the supervision tree of the host. */
  supervisedName: string
}

/** Paths and programs that the scripts of services use. */
export interface ScriptPaths extends InnerPaths {
  /** The default working directory of services. */
  dir: string
  shell: string
  /** The PATH of the scripts themselves. */
  path: string
  /** Prepended to program names where the PATH of the service is in force; empty when the programs are on any PATH. */
  prefix: string
}

export function boxPaths(home: Pick<Home, 'path'>, id: string): BoxPaths {
  if (!/^[a-z0-9][a-z0-9-]*$/.test(id)) throw new Error(`not the id of a box: ${JSON.stringify(id)}`)
  const directory = `${home.path}/sandbox/${id}`
  return {
    directory,
    upper: `${directory}/upper`,
    work: `${directory}/work`,
    upperUsr: `${directory}/upper-usr`,
    workUsr: `${directory}/work-usr`,
    root: `${directory}/root`,
    service: `${directory}/service`,
    run: `${directory}/run`,
    log: `${directory}/log`,
    checkpoints: `${directory}/checkpoint`,
    views: `${directory}/shown/checkpoints`,
    policy: `${directory}/shown/policy`,
    inside: `${directory}/api/open`,
    config: `${directory}/box.conf`,
    supervisedName: `sandbox-${id}`,
  }
}

/** Without isolation, processes of a box see the paths of the host. */
export function innerPathsOf(kind: 'bubblewrap' | 'none', paths: BoxPaths): InnerPaths {
  if (kind === 'bubblewrap') return innerPaths
  return { service: paths.service, run: paths.run, log: paths.log, home: `${paths.root}/home/sprite` }
}

/** The host uid of root in the box. Undefined when the platform is not root: then the box runs as the same user. */
export function boxUid(home: Pick<Home, 'uidStart'>, slot: number): number | undefined {
  return isRoot() ? home.uidStart + slot * uidsPerBox : undefined
}

// Where a box lies on the host's disk and what its processes call the same places. Directories whose names are listed
// here belong to the host; inside them only the leaves `supervise`, `event`, `state`, `stdout` and `stderr` belong to
// the box, so that a box can never put a link where the host expects a directory.
import { type Home, uidsPerBox } from '../host/home.ts'
import { isRoot } from '../host/process.ts'

export interface BoxPaths {
  directory: string
  /** Writable layers over the base and over the host's programs. */
  upper: string
  work: string
  upperUsr: string
  workUsr: string
  /** Where its root is mounted, in its own mount namespace only. */
  root: string
  /** Service definitions, which the box can read and not change. */
  service: string
  /** `run/<service>/{supervise,event,state}`: what supervision writes. */
  run: string
  /** `log/<service>/{stdout,stderr}`. */
  log: string
  /** A directory of each checkpoint, with its layers. */
  checkpoints: string
  /** Shown inside as `/.sprite/checkpoints`: an empty directory for each checkpoint that can be seen there. */
  views: string
  /** Shown inside as `/.sprite/policy`, not writable there. */
  policy: string
  /** Shown inside as `/.sprite/inside`, not writable there: the socket of the platform. */
  inside: string
  /** What the next start goes by. */
  config: string
  /** Of the host's supervisor. */
  supervisedName: string
}

/** What processes of a box call these places. */
export interface InnerPaths {
  /** The scan directory of the supervision inside. */
  service: string
  run: string
  log: string
  /** HOME and the working directory of commands. */
  home: string
}

/** With what the scripts that run services go by. */
export interface ScriptPlaces extends InnerPaths {
  /** Where services start that do not say where. */
  dir: string
  shell: string
  /** PATH of what the scripts themselves run. */
  path: string
  /** Before the names of these programs, where PATH is another's; empty when they are everybody's. */
  prefix: string
}

const inner: InnerPaths = {
  service: '/.berth/service',
  run: '/.berth/run',
  log: '/.sprite/logs/services',
  home: '/home/sprite',
}

/** Each is opened as the root of a box that does not share the host's files. */
export const innerPaths: Readonly<InnerPaths> = inner

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

/** Without isolation processes see the host's paths. */
export function innerPathsOf(kind: 'bubblewrap' | 'none', paths: BoxPaths): InnerPaths {
  if (kind === 'bubblewrap') return inner
  return { service: paths.service, run: paths.run, log: paths.log, home: `${paths.root}/home/sprite` }
}

/** The first of its uids, which its root has on the host. An ordinary user has himself only, and there is no choice. */
export function boxUid(home: Pick<Home, 'uidStart'>, slot: number): number | undefined {
  return isRoot() ? home.uidStart + slot * uidsPerBox : undefined
}

import { spawn } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Image, ImageError, type ImageStore } from '../../../src/drivers/image/driver.ts'
import type {
  ContainerStatus,
  ListenSocket,
  LogLine,
  MachineDriver,
  MachineExit,
} from '../../../src/drivers/machine/driver.ts'
import { takeWithTies } from '../../../src/model/app/machine-log.ts'
import type { MachineSpec } from '../../../src/model/app/machine-spec.ts'
import { formatImageReference, type ImageConfig } from '../../../src/model/image.ts'

export interface FakeMachine {
  spec: MachineSpec
  is: 'down' | 'waiting' | 'up'
  frozen: boolean
  /** When its program was started. */
  since: number
  exits: MachineExit[]
  /** The number of times that its program was started. */
  starts: number
  memoryMb: number
  log: LogLine[]
  containers: ContainerStatus[]
}

type Called = <T>(value: T) => Promise<T>

/** A machine driver that keeps machines in memory. Tests end programs with `end`. */
export class FakeMachines {
  readonly machines = new Map<string, FakeMachine>()
  /** The logs of removed machines. */
  readonly keptLogs = new Map<string, LogLine[]>()
  /** Makes starts fail with this message. */
  startProblem: string | undefined
  /** Makes programs exit at once with this code. */
  endsWith: number | undefined
  /** Makes policies fail to apply, as while a program is being started. */
  isStarting = false
  /** Makes stops wait until this is set to false. */
  stopsSlowly = false
  /** Whether machines can be frozen. */
  freezes = true
  /** The options of the last stop. */
  lastStop: MachineSpec['stop'] | undefined
  /** The sockets that listen in every machine; undefined when they cannot be listed. */
  listening: ListenSocket[] | undefined
  /** Whether machines have their own network namespace. */
  network: 'own' | 'none' = 'own'
  readonly listeners = new Set<(id: string) => void>()

  /** Makes the program exit; it is restarted only with `restarting`. */
  end(id: string, exit: Partial<MachineExit> = {}): void {
    const machine = this.machines.get(id)!
    const number = (machine.exits.at(-1)?.number ?? 0) + 1
    const outcome = { requested: false, restarting: false, restartSeconds: 0 }
    machine.exits.push({ at: Date.now(), exitCode: 0, signal: 0, oomKilled: false, ...outcome, number, ...exit })
    machine.is = !exit.restarting ? 'down' : exit.restartSeconds ? 'waiting' : 'up'
    machine.frozen = false
    if (exit.restarting) machine.starts++
    for (const listener of this.listeners) listener(id)
  }

  driver(called: Called): MachineDriver {
    return {
      isolation: () => called({ kind: 'bubblewrap', network: this.network } as const),
      startMachine: async (spec) => {
        if (this.startProblem) throw new Error(this.startProblem)
        const before = this.machines.get(spec.id)
        if (before?.spec.instanceId === spec.instanceId && before.is !== 'down') {
          before.frozen = false
          return called(undefined)
        }
        const exits = before?.spec.instanceId === spec.instanceId ? before.exits : []
        const starts = (before?.starts ?? 0) + 1
        const { memoryMb } = spec.limits
        const running = { is: 'up', frozen: false, since: Date.now() } as const
        const containers = spec.containers.map(({ name }) => {
          return { name, state: 'running' as const, run: 1, since: Date.now(), restarts: 0 }
        })
        this.machines.set(spec.id, { spec, ...running, exits, starts, memoryMb, log: before?.log ?? [], containers })
        if (this.endsWith !== undefined) this.end(spec.id, { exitCode: this.endsWith })
        return called(undefined)
      },
      inspectMachine: (id, instanceId) => {
        const machine = this.machines.get(id)
        if (machine?.spec.instanceId !== instanceId) return { is: 'absent' }
        const { is, frozen, since, exits } = machine
        const containers = machine.containers.length > 0 && { containers: machine.containers }
        return is === 'up' ? { is, pid: 7, since, frozen, exits, ...containers } : { is, exits }
      },
      onChange: (listener) => {
        this.listeners.add(listener)
        return () => this.listeners.delete(listener)
      },
      stopMachine: async (id, how) => {
        this.lastStop = how
        while (this.stopsSlowly) await sleep(5)
        const machine = this.machines.get(id)
        if (machine && machine.is !== 'down') this.end(id, { exitCode: 130, signal: 2, requested: true })
        return called(undefined)
      },
      signalMachine: (id) => called(this.machines.get(id)?.is === 'up'),
      reportHealth: (id, name, run, health) => {
        const found = this.machines.get(id)?.containers.find((container) => container.name === name)
        if (found?.run === run) found.health = health
      },
      freezeMachine: (id) => {
        const machine = this.machines.get(id)
        if (machine?.is === 'up') machine.frozen = this.freezes
        return called(this.freezes)
      },
      thawMachine: (id) => {
        const machine = this.machines.get(id)
        if (machine) machine.frozen = false
        return called(undefined)
      },
      applyTrafficPolicy: ({ id, policy }) => {
        const machine = this.machines.get(id)
        if (machine && policy) machine.spec = { ...machine.spec, policy }
        return called(!this.isStarting)
      },
      // Runs the command on the host, without isolation.
      spawnInMachine: (spec, { argv, env, dir }) => {
        if (!this.machines.has(spec.id)) throw new Error(`there is no machine ${spec.id}`)
        return spawn(argv[0], argv.slice(1), { env: { ...spec.env, ...env }, cwd: dir ?? '/', stdio: 'pipe' })
      },
      startSession: () => {
        throw new Error('sessions need a real machine')
      },
      listProcesses: () =>
        called([
          { pid: 1, stime: 1, rtime: 5, command: 'program', directory: '/', cpu: 0, rss: 4096, listen_sockets: [] },
        ]),
      listListening: () => this.listening,
      writeLog: (id, text) => void this.machines.get(id)?.log.push({ at: Date.now(), stream: 'platform', text }),
      trimKeptLogs: () => called(undefined),
      readMemory: (id) => {
        const machine = this.machines.get(id)
        return machine && { limitBytes: machine.memoryMb * 1024 ** 2, usedBytes: 4096 }
      },
      setMemoryLimit: (id, bytes) => {
        const fits = bytes >= 16 * 1024 ** 2
        if (fits) this.machines.get(id)!.memoryMb = bytes / 1024 ** 2
        return called(fits)
      },
      reclaimMemory: (_id, bytes) => called(Math.min(bytes, 3 * 1024 ** 2)),
      readLog: (id, lines) => called(this.logOf(id).slice(-lines)),
      readLogAfter: (id, afterMs, lines) => {
        const later = this.logOf(id).filter(({ at }) => at > afterMs)
        return called(
          takeWithTies(
            later.toSorted((a, b) => a.at - b.at),
            lines,
          ),
        )
      },
      followLog: (id, lines, signal) => this.follow(id, lines, signal),
      removeMachine: (id) => {
        this.keptLogs.set(id, this.logOf(id))
        this.machines.delete(id)
        return called(undefined)
      },
    }
  }

  private logOf(id: string): LogLine[] {
    return this.machines.get(id)?.log ?? this.keptLogs.get(id) ?? []
  }

  private async *follow(id: string, lines: number, signal: AbortSignal): AsyncGenerator<LogLine> {
    const { log } = this.machines.get(id) ?? { log: [] }
    for (let next = Math.max(0, log.length - lines); !signal.aborted; ) {
      for (; next < log.length; next++) yield log[next]!
      await sleep(5)
    }
  }
}

/** An image store that keeps images in memory. */
export class FakeImages {
  /** The complete references of images that exist; null for all. */
  available: Set<string> | null = null
  readonly pulled = new Map<string, Image>()
  config: Partial<ImageConfig> = {}
  pullsSlowly = false
  pulls = 0

  store(called: Called): ImageStore {
    return {
      pullImage: async (reference, onProgress) => {
        this.pulls++
        while (this.pullsSlowly) await sleep(5)
        const text = formatImageReference(reference)
        if (this.available && !this.available.has(text)) throw new ImageError('not_found', `there is no image ${text}`)
        onProgress?.(1, 1)
        const digest = `sha256:${Buffer.from(text).toString('hex').padEnd(64, '0').slice(0, 64)}`
        const image: Image = {
          digest,
          layers: ['/layer'],
          bytes: 1,
          config: {
            entrypoint: [],
            cmd: ['/bin/program'],
            env: { FROM: 'image', PATH: '/bin' },
            user: '',
            workingDir: '/',
            exposedPorts: [],
            labels: {},
            ...this.config,
          },
        }
        this.pulled.set(digest, image)
        return called(image)
      },
      describeImage: async (reference) => {
        const text = formatImageReference(reference)
        if (this.available && !this.available.has(text)) throw new ImageError('not_found', `there is no image ${text}`)
        return called({
          digest: `sha256:${'a'.repeat(64)}`,
          packedBytes: 5_000_000_000,
          manifest: { schemaVersion: 2 },
        })
      },
      findImage: (digest) => called(this.pulled.get(digest)),
      listImages: async () =>
        [...this.pulled.values()].map(({ digest }) => ({ digest, reference: digest, bytes: 1, pulledAt: 0 })),
      collectImages: async (used) => {
        const unused = [...this.pulled.keys()].filter((digest) => !used.has(digest))
        for (const digest of unused) this.pulled.delete(digest)
        return { images: unused.length, layers: 0, bytes: 0 }
      },
    }
  }
}

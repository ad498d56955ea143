import { machineAddress, resolverAddress } from '../../model/network.ts'
import type { NamedApp, NamedMachine } from '../../store/app/name.ts'
import type { DatabaseRoute } from '../routing/database.ts'
import { type Answer, answerCode, recordType } from './message.ts'

/** Keeps a TXT record below the 64 KiB of a DNS message. */
const maxTextBytes = 60_000
const maxAddresses = 256

type Found = { machines: NamedMachine[] } | { addresses: string[] } | { text: string }

/** The internal names of each private network. A machine sees only those of its own network. */
export class NameTable {
  isFilled = false
  readonly #homeNumber: number
  #apps = new Map<string, NamedApp>()
  /** Keyed by network number and app name. Includes apps of other networks that have an address in this one. */
  #networks = new Map<number, Map<string, NamedApp>>()
  /** Addresses of clusters, by `<network number> <name>`. */
  #databases = new Map<string, string>()

  constructor(homeNumber: number) {
    this.#homeNumber = homeNumber
  }

  fill(apps: NamedApp[]): void {
    this.#apps = new Map()
    this.#networks = new Map()
    for (const app of apps) this.#add(app)
    this.isFilled = true
  }

  /** Replaces the apps with these ids; those missing from `apps` are removed. */
  change(ids: string[], apps: NamedApp[]): void {
    for (const id of ids) this.#remove(id)
    for (const app of apps) this.#add(app)
  }

  fillDatabases(routes: DatabaseRoute[]): void {
    this.#databases = new Map(routes.map((route) => [`${route.networkNumber} ${route.name}`, route.address]))
  }

  #add(app: NamedApp): void {
    this.#apps.set(app.id, app)
    for (const number of networksOf(app)) {
      const names = this.#networks.get(number) ?? new Map<string, NamedApp>()
      this.#networks.set(number, names.set(app.name, app))
    }
  }

  #remove(id: string): void {
    const app = this.#apps.get(id)
    if (!app) return
    this.#apps.delete(id)
    for (const number of networksOf(app)) {
      const names = this.#networks.get(number)
      if (names?.get(app.name) === app) names.delete(app.name)
      if (names?.size === 0) this.#networks.delete(number)
    }
  }

  /** Returns undefined for names outside the internal zones, which other resolvers answer. */
  answer(networkNumber: number, name: string, type: number): Answer | undefined {
    const labels = name.split('.')
    const zone = labels.pop()!
    if (/(^|\.)a\.a\.d\.f\.ip6\.arpa$/.test(name)) return { code: answerCode.noSuchName, zone: 'a.a.d.f.ip6.arpa' }
    if (zone !== 'internal' && zone !== 'flycast') return undefined
    if (!this.isFilled) return { code: answerCode.failed }
    const database = this.#databases.get(`${networkNumber} ${name}`)
    const found = database
      ? { addresses: [database] }
      : labels.length > 0
        ? this.#find(networkNumber, zone, labels)
        : undefined
    if (!found) return { code: answerCode.noSuchName, zone }
    const answer = this.#render(found, type)
    return answer ? { code: answerCode.ok, ...answer } : { code: answerCode.ok, zone }
  }

  #render(found: Found, type: number): Partial<Answer> | undefined {
    const matches = (wanted: number) => type === wanted || type === recordType.ANY
    if ('text' in found) return matches(recordType.TXT) ? { text: found.text } : undefined
    const addresses = 'addresses' in found ? found.addresses : found.machines.map((machine) => this.#addressOf(machine))
    if (!matches(recordType.AAAA) || addresses.length === 0) return undefined
    return { addresses: addresses.slice(0, maxAddresses) }
  }

  #addressOf({ networkNumber, slot }: NamedMachine): string {
    return machineAddress(this.#homeNumber, networkNumber, slot)
  }

  #find(networkNumber: number, zone: string, labels: string[]): Found | undefined {
    const last = labels.at(-1)!
    const rest = labels.slice(0, -1)
    if (zone === 'internal' && last.startsWith('_')) return this.#findAll(networkNumber, last, rest)
    const app = this.#networks.get(networkNumber)?.get(last)
    if (!app) return undefined
    if (zone === 'flycast') {
      const addresses = app.services.filter((service) => service.networkNumber === networkNumber)
      if (rest.length > 0 || addresses.length === 0) return undefined
      return { addresses: addresses.map(({ address }) => address) }
    }
    const machines = app.machines.filter((machine) => machine.networkNumber === networkNumber && machine.isListed)
    if (app.networkNumber !== networkNumber && machines.length === 0) return undefined
    return findInApp(machines, rest)
  }

  #findAll(networkNumber: number, last: string, rest: string[]): Found | undefined {
    const own = [...(this.#networks.get(networkNumber)?.values() ?? [])].filter(
      (app) => app.networkNumber === networkNumber,
    )
    const apps = own.sort((a, b) => (a.name < b.name ? -1 : 1))
    if (last === '_api' && rest.length === 0) return { addresses: [resolverAddress(this.#homeNumber)] }
    if (last === '_apps' && rest.length === 0) return list(apps.map((app) => app.name))
    if (last === '_peer' && rest.length === 0) return { text: '' }
    if (last !== '_instances' || (rest.length > 0 && rest.join('.') !== 'all')) return undefined
    const describe = (app: NamedApp, machine: NamedMachine) =>
      `instance=${machine.id},app=${app.name},ip=${this.#addressOf(machine)},region=${machine.region}`
    const machines = apps.flatMap((app) =>
      app.machines
        .filter((machine) => machine.isListed && (machine.isStarted || rest.length > 0))
        .map((machine) => describe(app, machine)),
    )
    return list(machines, ';')
  }
}

function networksOf(app: NamedApp): Set<number> {
  const numbers = [app.networkNumber, ...app.services.map((service) => service.networkNumber)]
  return new Set(
    [...numbers, ...app.machines.map((machine) => machine.networkNumber)].filter((number) => number !== null),
  )
}

/** Interprets the labels before the name of the app. */
function findInApp(all: NamedMachine[], labels: string[]): Found | undefined {
  const started = all.filter((machine) => machine.isStarted)
  const path = labels.join('.')
  if (path === '' || path === 'global') return { machines: started }
  if (path === 'vms') return list(started.map(({ id, region }) => `${id} ${region}`))
  if (path === 'all.vms') return list(all.map(({ id, region }) => `${id} ${region}`))
  if (path === 'regions') return list(regionsOf(started))
  if (path === 'all.regions') return list(regionsOf(all))
  const top = /^top([1-9][0-9]{0,3})\.nearest\.of$/.exec(path)
  if (top) return { machines: started.slice(0, Number(top[1])) }
  const machines = started.filter(selector(labels))
  return machines.length > 0 ? { machines } : undefined
}

function selector(labels: string[]): (machine: NamedMachine) => boolean {
  const [first, second] = labels
  if (labels.length === 1) return (machine) => machine.region.toLowerCase() === first
  if (labels.length === 2 && second === 'vm') return (machine) => machine.id === first
  if (labels.length === 2 && second === 'process') return (machine) => machine.group.toLowerCase() === first
  if (labels.length < 4 || labels.slice(-2).join('.') !== 'kv._metadata') return () => false
  const key = labels.at(-3)!
  const value = labels.slice(0, -3).join('.')
  return ({ metadata }) =>
    Object.entries(metadata).some((entry) => entry[0].toLowerCase() === key && entry[1].toLowerCase() === value)
}

function regionsOf(machines: NamedMachine[]): string[] {
  return [...new Set(machines.map((machine) => machine.region))].sort()
}

function list(words: string[], separator = ','): Found {
  let text = words.join(separator)
  while (text.length > maxTextBytes) text = text.slice(0, text.lastIndexOf(separator, maxTextBytes))
  return { text }
}

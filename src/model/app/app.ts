import { type Static, Type } from 'typebox'
import { OrganizationReference } from '../account/org.ts'
import { defineStates, type State } from '../states.ts'
import type { Micros } from '../time.ts'
import { type MachineState, runningStates } from './machine.ts'

export const appStates = defineStates({
  active: { commands: { delete: 'deleting' } },
  deleting: { outcomes: { gone: 'deleted' } },
  deleted: {},
})

export interface App {
  id: string
  numericId: number
  orgId: string
  name: string
  network: string
  enableSubdomains: boolean
  state: State<typeof appStates>
  stateSince: Micros
  createdAt: Micros
}

/** The fields of the organization that are shown with an app. */
export interface AppOrg {
  orgName: string
  orgSlug: string
  orgNumericId: number
}

/** The response to a created app. */
export type CreatedAppRow = Pick<App, 'id' | 'numericId' | 'name' | 'network' | 'createdAt'> & AppOrg

/** The fields of an app that the API shows, with its counters. */
export interface AppSummary extends Pick<App, 'id' | 'numericId' | 'orgId' | 'name' | 'network'>, AppOrg {
  machineCount: number
  startedCount: number
  volumeCount: number
  /** Null until the app has a machine or a private address; absent in lists. */
  networkNumber?: number | null
}

export const appNamePattern = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/
export const networkPattern = /^[A-Za-z][A-Za-z0-9-]{0,62}$/
export const defaultNetwork = 'default'

/** Machine states in which a program may be running; an app with such machines is deleted only with force. */
export const runningMachineStates: readonly MachineState[] = [...runningStates, 'suspended']

export const AppStatus = Type.Enum(['pending', 'deployed', 'suspended'], {
  description: '`pending` has no machine yet, `deployed` has a started one, `suspended` has none started.',
})
export type AppStatus = Static<typeof AppStatus>

export function appStatus(app: Pick<AppSummary, 'machineCount' | 'startedCount'>): AppStatus {
  if (app.machineCount === 0) return 'pending'
  return app.startedCount > 0 ? 'deployed' : 'suspended'
}

export const CreateApp = Type.Object(
  {
    app_name: Type.Optional(
      Type.String({ description: 'Unique over all organizations; lowercase letters, digits and dashes, at most 63.' }),
    ),
    name: Type.Optional(Type.String({ description: 'Alias of `app_name`; one of them is required.' })),
    org_slug: Type.String({ description: 'The organization in which the app is created.' }),
    network: Type.Optional(
      Type.String({
        description:
          'A private network to segment the app onto; `default` when omitted or empty. Letters, digits and dashes, starting with a letter.',
      }),
    ),
    enable_subdomains: Type.Optional(
      Type.Boolean({ description: 'Route `*.<app_name>.<domain>` to the app as well.' }),
    ),
    app_role_id: Type.Optional(
      Type.String({ description: 'Must be empty: Berth has no builders and no apps that are databases.' }),
    ),
  },
  { title: 'CreateApp', anyOf: [{ required: ['app_name'] }, { required: ['name'] }] },
)
export type CreateApp = Static<typeof CreateApp>

export const CreatedApp = Type.Object(
  {
    id: Type.String({ description: '16 lowercase letters and digits.' }),
    created_at: Type.Integer({ description: 'Milliseconds since the epoch.' }),
    name: Type.String(),
    status: AppStatus,
    network: Type.String(),
    organization: OrganizationReference,
    internal_numeric_id: Type.Integer(),
  },
  { title: 'CreatedApp' },
)

export const AppDetails = Type.Object(
  {
    id: Type.String(),
    name: Type.String(),
    status: AppStatus,
    organization: OrganizationReference,
    machine_count: Type.Integer(),
    volume_count: Type.Integer(),
    network: Type.String(),
    network_cidr: Type.Optional(
      Type.String({ description: 'The address range of its private network, once the network exists.' }),
    ),
    internal_numeric_id: Type.Integer(),
    cname_target: Type.String({ description: 'The target for the CNAME record of a custom host name.' }),
  },
  { title: 'App' },
)

export const AppPage = Type.Object(
  {
    total_apps: Type.Integer({ description: 'All apps of the organization, not only those of this page.' }),
    apps: Type.Array(
      Type.Object({
        id: Type.String(),
        name: Type.String(),
        machine_count: Type.Integer(),
        volume_count: Type.Integer(),
        network: Type.String(),
        status: AppStatus,
        organization: OrganizationReference,
        internal_numeric_id: Type.Integer(),
      }),
    ),
    next_cursor: Type.Optional(Type.String({ description: 'Present when more follow; send it as `cursor`.' })),
  },
  { title: 'AppPage' },
)

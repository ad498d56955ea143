import { adoptRoutes } from './adopt.ts'
import { appRoutes } from './app.ts'
import { attachmentRoutes } from './attachment.ts'
import { backupRoutes } from './backup.ts'
import { certificateRoutes } from './certificate.ts'
import { checkpointRoutes } from './checkpoint.ts'
import { clusterRoutes } from './cluster.ts'
import { clusterLogRoutes } from './cluster-log.ts'
import { controlSockets } from './control.ts'
import { databaseRoutes } from './database.ts'
import { drillRoutes } from './drill.ts'
import { execRoutes, execSockets } from './exec.ts'
import { fileRoutes } from './file.ts'
import { fileSockets } from './file-watch.ts'
import { flyctlRoutes } from './flyctl.ts'
import { graphqlRoutes } from './graphql.ts'
import { identityRoutes } from './identity.ts'
import { ipRoutes } from './ip.ts'
import { machineRoutes } from './machine.ts'
import { machineCommandRoutes } from './machine-command.ts'
import { machineLeaseRoutes, machineMetadataRoutes } from './machine-lease.ts'
import { machineLogRoutes } from './machine-log.ts'
import { machineOrgRoutes } from './machine-org.ts'
import { networkPolicyRoutes } from './network-policy.ts'
import { orgRoutes } from './org.ts'
import { policyRoutes } from './policy.ts'
import { portSockets } from './port.ts'
import { proxySockets } from './proxy.ts'
import { regionRoutes } from './region.ts'
import type { Route, SocketRoute } from './route.ts'
import { sandboxResourceRoutes } from './sandbox.ts'
import { secretRoutes } from './secret.ts'
import { secretKeyRoutes } from './secret-key.ts'
import { serviceRoutes } from './service.ts'
import { taskRoutes } from './task.ts'
import { tokenRoutes } from './token.ts'
import { tokenCheckRoutes } from './token-check.ts'
import { userRoutes } from './user.ts'
import { volumeRoutes } from './volume.ts'

/** Everything the platform address can be asked for. */
export const platformRoutes: Route[] = [
  ...clusterRoutes,
  ...clusterLogRoutes,
  ...backupRoutes,
  ...adoptRoutes,
  ...drillRoutes,
  ...userRoutes,
  ...databaseRoutes,
  ...attachmentRoutes,
  ...appRoutes,
  ...certificateRoutes,
  ...machineRoutes,
  ...machineCommandRoutes,
  ...machineLeaseRoutes,
  ...machineMetadataRoutes,
  ...machineLogRoutes,
  ...machineOrgRoutes,
  ...secretRoutes,
  ...secretKeyRoutes,
  ...volumeRoutes,
  ...ipRoutes,
  ...networkPolicyRoutes,
  ...orgRoutes,
  ...tokenRoutes,
  ...tokenCheckRoutes,
  ...identityRoutes,
  ...regionRoutes,
  ...graphqlRoutes,
  ...flyctlRoutes,
]

/** Everything the sandbox address can be asked for. */
export const sandboxRoutes: Route[] = [
  ...sandboxResourceRoutes,
  ...checkpointRoutes,
  ...policyRoutes,
  ...fileRoutes,
  ...execRoutes,
  ...serviceRoutes,
  ...taskRoutes,
]

export const sandboxSockets: SocketRoute[] = [
  ...execSockets,
  ...controlSockets,
  ...fileSockets,
  ...portSockets,
  ...proxySockets,
]

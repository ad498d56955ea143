import { orgRoutes } from './account/org.ts'
import { quotaRoutes } from './account/quota.ts'
import { regionRoutes } from './account/region.ts'
import { tokenRoutes } from './account/token.ts'
import { tokenCheckRoutes } from './account/token-check.ts'
import { tokenMintRoutes } from './account/token-mint.ts'
import { appRoutes } from './app/app.ts'
import { attachmentRoutes } from './app/attachment.ts'
import { certificateRoutes } from './app/certificate.ts'
import { identityRoutes } from './app/identity.ts'
import { ipRoutes } from './app/ip.ts'
import { kmsTokenRoutes } from './app/kms-token.ts'
import { machineRoutes } from './app/machine.ts'
import { machineCommandRoutes } from './app/machine-command.ts'
import { machineExecRoutes } from './app/machine-exec.ts'
import { machineLeaseRoutes, machineMetadataRoutes } from './app/machine-lease.ts'
import { machineLogRoutes } from './app/machine-log.ts'
import { machineMemoryRoutes } from './app/machine-memory.ts'
import { machineOrgRoutes } from './app/machine-org.ts'
import { machineSessionSockets } from './app/machine-session.ts'
import { networkPolicyRoutes } from './app/network-policy.ts'
import { secretRoutes } from './app/secret.ts'
import { secretKeyRoutes } from './app/secret-key.ts'
import { volumeRoutes } from './app/volume.ts'
import { flyctlRoutes } from './flyctl/routes.ts'
import { graphqlRoutes } from './graphql/route.ts'
import type { Route, SocketRoute } from './http/route.ts'
import { adoptRoutes } from './postgres/adopt.ts'
import { backupRoutes } from './postgres/backup.ts'
import { clusterRoutes } from './postgres/cluster.ts'
import { databaseRoutes } from './postgres/database.ts'
import { drillRoutes } from './postgres/drill.ts'
import { importRoutes } from './postgres/import.ts'
import { clusterLogRoutes } from './postgres/log.ts'
import { recoverRoutes } from './postgres/recover.ts'
import { upgradeRoutes } from './postgres/upgrade.ts'
import { userRoutes } from './postgres/user.ts'
import { checkpointRoutes } from './sandbox/checkpoint.ts'
import { controlSockets } from './sandbox/control.ts'
import { execRoutes, execSockets } from './sandbox/exec.ts'
import { fileRoutes } from './sandbox/file.ts'
import { fileSockets } from './sandbox/file-watch.ts'
import { policyRoutes } from './sandbox/policy.ts'
import { portSockets } from './sandbox/port.ts'
import { proxySockets } from './sandbox/proxy.ts'
import { sandboxResourceRoutes } from './sandbox/sandbox.ts'
import { serviceRoutes } from './sandbox/service.ts'
import { taskRoutes } from './sandbox/task.ts'

/** The operations of the platform API, in the order of its reference. */
export const platformRoutes: Route[] = [
  ...clusterRoutes,
  ...clusterLogRoutes,
  ...backupRoutes,
  ...adoptRoutes,
  ...drillRoutes,
  ...recoverRoutes,
  ...importRoutes,
  ...upgradeRoutes,
  ...userRoutes,
  ...databaseRoutes,
  ...attachmentRoutes,
  ...appRoutes,
  ...certificateRoutes,
  ...machineRoutes,
  ...machineCommandRoutes,
  ...machineExecRoutes,
  ...machineMemoryRoutes,
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
  ...quotaRoutes,
  ...tokenRoutes,
  ...tokenCheckRoutes,
  ...identityRoutes,
  ...kmsTokenRoutes,
  ...regionRoutes,
  ...graphqlRoutes,
  ...flyctlRoutes,
]

/** The operations of the sandbox API, in the order of its reference. */
export const sandboxRoutes: Route[] = [
  ...sandboxResourceRoutes,
  ...checkpointRoutes,
  ...policyRoutes,
  ...fileRoutes,
  ...execRoutes,
  ...serviceRoutes,
  ...taskRoutes,
  ...tokenMintRoutes,
]

export const platformSockets: SocketRoute[] = machineSessionSockets

export const sandboxSockets: SocketRoute[] = [
  ...execSockets,
  ...controlSockets,
  ...fileSockets,
  ...portSockets,
  ...proxySockets,
]

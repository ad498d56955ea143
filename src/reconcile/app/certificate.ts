// Renews certificates of the platform's own authority before they expire. Storing one notifies the edge.
import { certificateKey, checkCertificate, renewalDays } from '../../model/app/certificate.ts'
import { seal } from '../../model/seal.ts'
import { listExpiring, renewCertificate } from '../../store/app/certificate.ts'
import type { World } from '../step.ts'

type RenewalContext = Pick<World, 'db' | 'encryptionKey' | 'makeCertificate'>

const checkIntervalMs = 3_600_000

export function watchCertificates(world: RenewalContext, onError: (error: unknown) => void): { stop(): Promise<void> } {
  let running = Promise.resolve()
  let stopped = false

  async function renewAll(): Promise<void> {
    for (const old of await listExpiring(world.db, renewalDays)) {
      if (stopped) return
      // A failure is reported but does not keep the others from being renewed.
      await renew(world, old).catch(onError)
    }
  }

  function check(): void {
    running = running.then(renewAll).catch(onError)
  }

  const timer = setInterval(check, checkIntervalMs)
  check()
  return {
    async stop() {
      stopped = true
      clearInterval(timer)
      await running
    },
  }
}

async function renew(world: RenewalContext, old: { hostname: string; fullchain: string }): Promise<void> {
  const { fullchain, privateKey } = await world.makeCertificate(old.hostname)
  const expiresAt = checkCertificate(old.hostname, fullchain, privateKey)
  const sealed = seal(certificateKey(world.encryptionKey), Buffer.from(privateKey))
  await renewCertificate(world.db, old, { fullchain, privateKey: sealed, expiresAt })
}

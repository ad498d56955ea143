// Makes certificates of the platform's authority anew before they expire. The edge is told of them as they are stored.
import { certificateKey, checkCertificate, renewalDays } from '../../model/app/certificate.ts'
import { seal } from '../../model/seal.ts'
import { listExpiring, renewCertificate } from '../../store/app/certificate.ts'
import type { World } from '../step.ts'

type Parts = Pick<World, 'db' | 'encryptionKey' | 'makeCertificate'>

const lookMs = 3_600_000

export function watchCertificates(world: Parts, onError: (error: unknown) => void): { stop(): Promise<void> } {
  let running = Promise.resolve()
  let stopped = false

  async function renewAll(): Promise<void> {
    for (const old of await listExpiring(world.db, renewalDays)) {
      if (stopped) return
      // One that cannot be made is no reason to let the others expire.
      await renew(world, old).catch(onError)
    }
  }

  function look(): void {
    running = running.then(renewAll).catch(onError)
  }

  const timer = setInterval(look, lookMs)
  look()
  return {
    async stop() {
      stopped = true
      clearInterval(timer)
      await running
    },
  }
}

async function renew(world: Parts, old: { hostname: string; fullchain: string }): Promise<void> {
  const { fullchain, privateKey } = await world.makeCertificate(old.hostname)
  const expiresAt = checkCertificate(old.hostname, fullchain, privateKey)
  const sealed = seal(certificateKey(world.encryptionKey), Buffer.from(privateKey))
  await renewCertificate(world.db, old, { fullchain, privateKey: sealed, expiresAt })
}

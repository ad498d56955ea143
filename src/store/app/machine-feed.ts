import type pg from 'pg'
import { type ChangeFeed, changeFeed } from '../change-feed.ts'

interface MachineChange {
  appId: string
  machineId: string
}

export type MachineFeed = ChangeFeed<MachineChange>

export function machineFeed(config: () => pg.ClientConfig): MachineFeed {
  return changeFeed(config, 'machine_change', (payload) => {
    const [appId, machineId] = payload?.split(' ') ?? []
    return machineId === undefined ? undefined : { appId: appId!, machineId }
  })
}

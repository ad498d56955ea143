import { Type } from 'typebox'

export const ByApp = Type.Object({ app_name: Type.String({ description: 'The name of the app.' }) })

export const ByMachine = Type.Object({
  ...ByApp.properties,
  machine_id: Type.String({ description: 'The id of the machine.' }),
})

/** The header with which the holder of a lease of a machine changes the machine. */
export const LeaseHeader = Type.Object({
  'fly-machine-lease-nonce': Type.Optional(
    Type.String({ description: 'The nonce of the lease, if the machine is leased.', examples: ['0f9c2ad75e3b41d8'] }),
  ),
})

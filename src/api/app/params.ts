import { Type } from 'typebox'

export const ByApp = Type.Object({ app_name: Type.String({ description: 'The name of the app.' }) })

export const ByMachine = Type.Object({
  ...ByApp.properties,
  machine_id: Type.String({ description: 'The id of the machine.' }),
})

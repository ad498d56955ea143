import { readFileSync } from 'node:fs'
import { buildSchema, type GraphQLScalarType, type GraphQLSchema } from 'graphql'

const file = new URL('schema.graphql', import.meta.url)

let built: GraphQLSchema | undefined

/** Parses the schema on first use. */
export function graphqlSchema(): GraphQLSchema {
  if (built) return built
  const schema = buildSchema(readFileSync(file, 'utf8'))
  ;(schema.getType('BigInt') as GraphQLScalarType).serialize = String
  built = schema
  return schema
}

// Executes GraphQL queries. Loaded with the first query, because most installations never receive one.
import {
  type DocumentNode,
  execute,
  GraphQLError,
  type GraphQLFieldResolver,
  Kind,
  OperationTypeNode,
  parse,
  type SelectionSetNode,
  validate,
} from 'graphql'
import { BerthError, badRequest } from '../../model/errors.ts'
import { graphqlSchema } from './schema.ts'
import { findUnsupported } from './unsupported.ts'
import { type GraphqlNode, refusalView } from './view.ts'

// Ten times more than the queries of all known clients need. An introspection query has about 300 tokens.
const maxTokens = 2000
const maxDepth = 20
/** The limit on fields of a response; a field that needs a lookup counts as `lookupCost` fields. */
const maxCost = 50_000
const lookupCost = 100
const maxMutations = 20

export interface GraphqlQuery {
  query: string
  variables?: object | null
  operationName?: string | null
}

/** The cost of a query so far. */
interface Cost {
  fields: number
}

export async function answerQuery(rootValue: GraphqlNode, { query, variables, operationName }: GraphqlQuery) {
  const schema = graphqlSchema()
  const document = parseQuery(query)
  if (document instanceof GraphQLError) return { errors: [view(document)] }
  const unsupported = findUnsupported(schema, document)
  if (unsupported.length > 0) return { errors: unsupported }
  const invalid = validate(schema, document, undefined, { maxErrors: 10 })
  if (invalid.length > 0) return { errors: invalid.map(view) }
  const tooLarge = checkSize(document)
  if (tooLarge) return { errors: [refusalView(tooLarge)] }
  const cost: Cost = { fields: 0 }
  const { data, errors } = await execute({
    schema,
    document,
    rootValue,
    contextValue: cost,
    variableValues: variables as Record<string, unknown> | null,
    operationName: operationName ?? null,
    fieldResolver: resolveField,
  })
  if (cost.fields > maxCost) return { data: data ?? null, errors: [refusalView(tooExpensive())] }
  const unexpected = errors?.find(isInternalError)
  if (unexpected) throw unexpected.originalError
  return { ...(data === undefined ? {} : { data }), ...(errors ? { errors: errors.map(view) } : {}) }
}

function parseQuery(query: string): DocumentNode | GraphQLError {
  try {
    return parse(query, { maxTokens })
  } catch (err) {
    if (err instanceof GraphQLError) return err
    throw err
  }
}

/** Returns the value of a field or calls its function. Beyond the cost limit nothing more is resolved. */
const resolveField: GraphQLFieldResolver<Record<string, unknown>, Cost> = (source, args, cost, info) => {
  const value = source[info.fieldName]
  const isLookup = typeof value === 'function'
  cost.fields += isLookup ? lookupCost : 1
  if (cost.fields > maxCost) return undefined
  return isLookup ? value(args) : value
}

/** Limits depth and mutations before execution. The recursion ends, because validation rejects cyclic fragments. */
function checkSize(document: DocumentNode): BerthError | undefined {
  const fragments = new Map<string, SelectionSetNode>()
  for (const definition of document.definitions) {
    if (definition.kind === Kind.FRAGMENT_DEFINITION) fragments.set(definition.name.value, definition.selectionSet)
  }
  const measured = new Map<SelectionSetNode, Size>()
  const measure = (set: SelectionSetNode | undefined): Size => {
    if (!set) return { depth: 0, width: 0 }
    const cached = measured.get(set)
    if (cached) return cached
    const sizes = set.selections.map((selection): Size => {
      if (selection.kind === Kind.FRAGMENT_SPREAD) return measure(fragments.get(selection.name.value))
      const { depth, width } = measure(selection.selectionSet)
      return selection.kind === Kind.FIELD ? { depth: depth + 1, width: 1 } : { depth, width }
    })
    const size = {
      depth: Math.max(...sizes.map(({ depth }) => depth)),
      width: sizes.reduce((sum, { width }) => sum + width, 0),
    }
    measured.set(set, size)
    return size
  }
  for (const definition of document.definitions) {
    if (definition.kind !== Kind.OPERATION_DEFINITION) continue
    const { depth, width } = measure(definition.selectionSet)
    if (depth > maxDepth) return badRequest(`the query is nested deeper than ${maxDepth} levels`)
    if (definition.operation === OperationTypeNode.MUTATION && width > maxMutations)
      return badRequest(`a request may contain at most ${maxMutations} mutations, not ${width}`)
  }
  return undefined
}

interface Size {
  depth: number
  /** The number of fields at the top level. */
  width: number
}

/** Internal errors fail the whole request, so that they are reported and logged as in other operations. */
function isInternalError(error: GraphQLError): boolean {
  const cause = error.originalError
  if (!cause || cause instanceof GraphQLError) return false
  return !(cause instanceof BerthError) || cause.code === 'internal'
}

function view(error: GraphQLError) {
  const { message, path, locations } = error.toJSON()
  const position = { ...(path ? { path } : {}), ...(locations ? { locations } : {}) }
  const cause = error.originalError
  if (cause instanceof BerthError) return { ...refusalView(cause), ...position }
  return { message, ...position, extensions: { code: 'GRAPHQL_VALIDATION_FAILED' } }
}

function tooExpensive() {
  return badRequest('the query is too expensive; request fewer fields or smaller pages')
}

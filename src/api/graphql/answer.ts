// What a query leads to. It is loaded with the first one, because most platforms are never asked this way.
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
import { type GraphqlNode, refusalView } from './view.ts'

// Enough for the queries of every known client, ten times over. Asking for the whole schema takes some 300 tokens.
const maxTokens = 2000
const maxDepth = 20
/** Fields of the answer; whatever has to be looked up counts as many. */
const maxCost = 50_000
const lookupCost = 100
const maxMutations = 20

export interface Asked {
  query: string
  variables?: object | null
  operationName?: string | null
}

/** What a query has cost so far. */
interface Bill {
  cost: number
}

export async function answerQuery(rootValue: GraphqlNode, asked: Asked) {
  const schema = graphqlSchema()
  const document = read(asked.query)
  if (document instanceof GraphQLError) return { errors: [view(document)] }
  const mistakes = validate(schema, document, undefined, { maxErrors: 10 })
  if (mistakes.length > 0) return { errors: mistakes.map(view) }
  const refusal = refuseSize(document)
  if (refusal) return { errors: [refusalView(refusal)] }
  const bill: Bill = { cost: 0 }
  const { data, errors } = await execute({
    schema,
    document,
    rootValue,
    contextValue: bill,
    variableValues: asked.variables as Record<string, unknown> | null,
    operationName: asked.operationName ?? null,
    fieldResolver: resolveField,
  })
  if (bill.cost > maxCost) return { data: data ?? null, errors: [refusalView(tooMuch())] }
  const unexpected = errors?.find(isOurs)
  if (unexpected) throw unexpected.originalError
  return { ...(data === undefined ? {} : { data }), ...(errors ? { errors: errors.map(view) } : {}) }
}

function read(query: string): DocumentNode | GraphQLError {
  try {
    return parse(query, { maxTokens })
  } catch (err) {
    if (err instanceof GraphQLError) return err
    throw err
  }
}

/** The value of a field, or what its function finds. Past the limit nothing more is looked up or opened. */
const resolveField: GraphQLFieldResolver<Record<string, unknown>, Bill> = (source, args, bill, info) => {
  const value = source[info.fieldName]
  const isLookup = typeof value === 'function'
  bill.cost += isLookup ? lookupCost : 1
  if (bill.cost > maxCost) return undefined
  return isLookup ? value(args) : value
}

/** Before anything is done. Fragments do not contain themselves: that is checked before. */
function refuseSize(document: DocumentNode): BerthError | undefined {
  const fragments = new Map<string, SelectionSetNode>()
  for (const definition of document.definitions) {
    if (definition.kind === Kind.FRAGMENT_DEFINITION) fragments.set(definition.name.value, definition.selectionSet)
  }
  const known = new Map<SelectionSetNode, Size>()
  const measure = (set: SelectionSetNode | undefined): Size => {
    if (!set) return { depth: 0, width: 0 }
    const before = known.get(set)
    if (before) return before
    const sizes = set.selections.map((selection): Size => {
      if (selection.kind === Kind.FRAGMENT_SPREAD) return measure(fragments.get(selection.name.value))
      const { depth, width } = measure(selection.selectionSet)
      return selection.kind === Kind.FIELD ? { depth: depth + 1, width: 1 } : { depth, width }
    })
    const size = {
      depth: Math.max(...sizes.map(({ depth }) => depth)),
      width: sizes.reduce((sum, { width }) => sum + width, 0),
    }
    known.set(set, size)
    return size
  }
  for (const definition of document.definitions) {
    if (definition.kind !== Kind.OPERATION_DEFINITION) continue
    const { depth, width } = measure(definition.selectionSet)
    if (depth > maxDepth) return badRequest(`the query goes deeper than ${maxDepth} levels`)
    if (definition.operation === OperationTypeNode.MUTATION && width > maxMutations)
      return badRequest(`one request may hold ${maxMutations} mutations, not ${width}`)
  }
  return undefined
}

interface Size {
  depth: number
  /** Fields side by side. */
  width: number
}

/** Not a refusal but a fault, which is answered and logged as everywhere. What is away for a moment is neither. */
function isOurs(error: GraphQLError): boolean {
  const cause = error.originalError
  if (!cause || cause instanceof GraphQLError) return false
  return !(cause instanceof BerthError) || cause.code === 'internal'
}

function view(error: GraphQLError) {
  const { message, path, locations } = error.toJSON()
  const place = { ...(path ? { path } : {}), ...(locations ? { locations } : {}) }
  const cause = error.originalError
  if (cause instanceof BerthError) return { ...refusalView(cause), ...place }
  return { message, ...place, extensions: { code: 'GRAPHQL_VALIDATION_FAILED' } }
}

function tooMuch() {
  return badRequest('the query asks for too much at once; ask for fewer fields or shorter pages')
}

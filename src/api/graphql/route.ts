import { Type } from 'typebox'
import { type Route, route } from '../http/route.ts'
import { rootFor } from './permission.ts'
import { refusalView } from './view.ts'

const GraphqlRequest = Type.Object({
  query: Type.String({ description: 'A GraphQL document.', examples: ['{ organizations { nodes { slug } } }'] }),
  variables: Type.Optional(Type.Union([Type.Object({}), Type.Null()], { description: 'The values of its variables.' })),
  operationName: Type.Optional(
    Type.Union([Type.String(), Type.Null()], {
      description: 'The operation to run, if the document contains several.',
    }),
  ),
})

const GraphqlAnswer = Type.Object(
  {
    data: Type.Optional(Type.Unsafe<unknown>({})),
    errors: Type.Optional(
      Type.Array(
        Type.Object({
          message: Type.String(),
          path: Type.Optional(Type.Array(Type.Unsafe<string | number>({ type: ['string', 'integer'] }))),
          locations: Type.Optional(Type.Array(Type.Object({ line: Type.Integer(), column: Type.Integer() }))),
          extensions: Type.Object({
            code: Type.String({ description: 'Such as `NOT_FOUND`.' }),
            status: Type.Optional(Type.String({ description: 'Such as `name_taken`.' })),
          }),
        }),
      ),
    ),
  },
  { title: 'GraphqlAnswer' },
)

export const graphqlRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/graphql',
    id: 'graphql',
    tag: 'GraphQL',
    summary: 'Run a GraphQL query or mutation',
    description: 'Introspection returns the schema. Errors are in `errors`, with status 200.',
    scope: 'read',
    targets: 'none', // each field at the top checks what it concerns
    body: GraphqlRequest,
    status: 200,
    response: GraphqlAnswer,
    errors: {},
    wrongTypeStatus: 400,
    problem: (error) => ({ error: error.message, errors: [refusalView(error)] }),
    run: async ({ ctx, body, credentials }) => {
      const root = await rootFor(ctx, credentials)
      const { answerQuery } = await import('./answer.ts')
      return answerQuery(root, body)
    },
  }),
]

import { Type } from 'typebox'
import { attach, detach } from '../../actions/app/attachment.ts'
import { toRfc3339 } from '../../model/time.ts'
import { attachment } from '../http/access.ts'
import { Answer, type Route, route } from '../http/route.ts'
import { ById, Data, noCluster } from '../postgres/cluster.ts'

const AttachmentView = Type.Object(
  {
    postgres_cluster_id: Type.String(),
    app_name: Type.String(),
    attached_at: Type.String({ format: 'date-time' }),
  },
  { title: 'PostgresAttachment' },
)

export const attachmentRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/attachments',
    id: 'attachApp',
    tag: 'Postgres',
    summary: 'Attach an app to a cluster',
    description:
      'Records that the app uses the cluster. The status is 200 instead of 201 when it was attached already.',
    scope: 'write',
    action: 'write',
    targets: attachment,
    params: ById,
    body: Type.Object({
      app_name: Type.String({ description: 'An app of the same organization.' }),
      secret: Type.Optional(
        Type.Object(
          { name: Type.String(), value: Type.String() },
          {
            description:
              'A secret to set in the app, such as a connection string. Detaching removes it, unless it was changed since.',
          },
        ),
      ),
    }),
    status: 201,
    otherStatus: 200,
    response: Data(AttachmentView),
    errors: {
      404: `${noCluster} Or: its organization has no such app.`,
      422: 'A field is missing or not valid.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => {
      const { attachedAt, isNew } = await attach(ctx, params.postgres_cluster_id, body.app_name, body.secret)
      const data = {
        postgres_cluster_id: params.postgres_cluster_id,
        app_name: body.app_name,
        attached_at: toRfc3339(attachedAt),
      }
      return new Answer(isNew ? 201 : 200, { data })
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/postgres/{postgres_cluster_id}/attachments/{app_name}',
    id: 'detachApp',
    action: 'write',
    tag: 'Postgres',
    summary: 'Detach an app from a cluster',
    description: 'The secret that was set by the attachment is removed, unless it was changed since.',
    scope: 'write',
    params: Type.Object({ ...ById.properties, app_name: Type.String({ description: 'The attached app.' }) }),
    status: 204,
    errors: {
      404: `${noCluster} Or: the app is not attached to it.`,
    },
    wrongTypeStatus: 400,
    run: ({ ctx, params }) => detach(ctx, params.postgres_cluster_id, params.app_name),
  }),
]

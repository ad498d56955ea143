import { Type } from 'typebox'
import { changeTask, createTask, deleteTask, getTask, listTasksOf } from '../../actions/sandbox/task.ts'
import { ChangeTask, CreateTask, type Task, TaskView } from '../../model/sandbox/task.ts'
import { toRfc3339 } from '../../model/time.ts'
import { readOnly } from '../error-text.ts'
import { type Route, route } from '../http/route.ts'
import { ByName, sandboxAbsent } from './sandbox.ts'

const ByTask = Type.Object({
  name: Type.String({ description: 'The name of the sandbox.' }),
  task_name: Type.String({ description: 'The name of the task.' }),
})

const path = '/v1/sandboxes/{name}/tasks'
const onePath = `${path}/{task_name}`
const shared = { tag: 'Tasks', wrongTypeStatus: 400 } as const
const absent = 'The sandbox or the task does not exist.'
const tooMany = 'The maximum number of tasks is reached.'

export const taskRoutes: Route[] = [
  route({
    ...shared,
    method: 'GET',
    path,
    id: 'listTasks',
    summary: 'List tasks',
    scope: 'read',
    params: ByName,
    status: 200,
    response: Type.Object({ tasks: Type.Array(TaskView) }, { title: 'Tasks' }),
    errors: { 404: sandboxAbsent },
    run: async ({ ctx, params }) => ({ tasks: (await listTasksOf(ctx, params.name)).map(taskView) }),
  }),
  route({
    ...shared,
    method: 'POST',
    path,
    id: 'createTask',
    action: 'create',
    summary: 'Start a task',
    scope: 'write',
    params: ByName,
    body: CreateTask,
    status: 201,
    response: TaskView,
    errors: { 403: readOnly, 404: sandboxAbsent, 409: `A task of this name exists. Or: ${tooMany}` },
    run: async ({ ctx, params, body }) => taskView(await createTask(ctx, params.name, body.name, body.expire)),
  }),
  route({
    ...shared,
    method: 'PUT',
    path,
    id: 'putTask',
    summary: 'Start or extend a task',
    scope: 'write',
    params: ByName,
    body: CreateTask,
    status: 200,
    response: TaskView,
    errors: { 403: readOnly, 404: sandboxAbsent, 409: tooMany },
    run: async ({ ctx, params, body }) => taskView(await changeTask(ctx, params.name, body.name, body.expire)),
  }),
  route({
    ...shared,
    method: 'GET',
    path: onePath,
    id: 'getTask',
    summary: 'Show a task',
    scope: 'read',
    params: ByTask,
    status: 200,
    response: TaskView,
    errors: { 404: absent },
    run: async ({ ctx, params }) => taskView(await getTask(ctx, params.name, params.task_name)),
  }),
  route({
    ...shared,
    method: 'PUT',
    path: onePath,
    id: 'changeTask',
    summary: 'Start or extend a task by its name',
    scope: 'write',
    params: ByTask,
    body: ChangeTask,
    status: 200,
    response: TaskView,
    errors: { 403: readOnly, 404: 'The sandbox does not exist, or the name is not valid.', 409: tooMany },
    run: async ({ ctx, params, body }) => taskView(await changeTask(ctx, params.name, params.task_name, body.expire)),
  }),
  route({
    ...shared,
    method: 'DELETE',
    path: onePath,
    id: 'deleteTask',
    summary: 'End a task',
    scope: 'write',
    params: ByTask,
    status: 204,
    errors: { 403: readOnly, 404: absent },
    run: ({ ctx, params }) => deleteTask(ctx, params.name, params.task_name),
  }),
]

function taskView({ name, startedAt, expiresAt }: Task) {
  return { name, started_at: toRfc3339(startedAt), expires_at: toRfc3339(expiresAt) }
}

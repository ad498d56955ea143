import { conflict, notFound } from '../../model/errors.ts'
import { type Expire, maxTasks, readExpire, type Task, taskNamePattern } from '../../model/sandbox/task.ts'
import type { Tx } from '../../store/db.ts'
import { listTasks, putTask, removeExpiredTasks, removeTask } from '../../store/sandbox/task.ts'
import { type Context, checked } from '../context.ts'
import { getVisible, getWritable, requireAlive } from './sandbox.ts'

export async function listTasksOf(ctx: Context, sandboxName: string): Promise<Task[]> {
  const { sandbox } = await getVisible(ctx, sandboxName)
  return listTasks(ctx.db, sandbox.id)
}

export async function getTask(ctx: Context, sandboxName: string, name: string): Promise<Task> {
  const found = (await listTasksOf(ctx, sandboxName)).find((task) => task.name === name)
  if (!found) throw taskNotFound()
  return found
}

export async function createTask(ctx: Context, sandboxName: string, name: string, expire: Expire): Promise<Task> {
  const millis = await checked(ctx, () => readExpire(expire))
  return change(ctx, sandboxName, async (tx, sandboxId, tasks) => {
    if (tasks.some((task) => task.name === name)) throw conflict(`there already is a task ${name}`)
    refuseTooMany(tasks)
    return putTask(tx, sandboxId, name, millis)
  })
}

/** Creates the task if it does not exist. */
export async function changeTask(ctx: Context, sandboxName: string, name: string, expire: Expire): Promise<Task> {
  const millis = await checked(ctx, () => readExpire(expire))
  return change(ctx, sandboxName, async (tx, sandboxId, tasks) => {
    if (!taskNamePattern.test(name)) throw taskNotFound()
    if (!tasks.some((task) => task.name === name)) refuseTooMany(tasks)
    return putTask(tx, sandboxId, name, millis)
  })
}

export async function deleteTask(ctx: Context, sandboxName: string, name: string): Promise<void> {
  const { sandbox } = await getWritable(ctx, sandboxName)
  // Invalid names must not reach the database, which rejects NUL bytes with an error.
  if (!taskNamePattern.test(name) || !(await removeTask(ctx.db, sandbox.id, name))) throw taskNotFound()
}

/** Locks the tasks of a sandbox for a change, and deletes expired ones. */
async function change<T>(
  ctx: Context,
  sandboxName: string,
  body: (tx: Tx, sandboxId: string, tasks: Task[]) => Promise<T>,
): Promise<T> {
  const { sandbox } = await getWritable(ctx, sandboxName)
  return ctx.db.transaction(async (tx) => {
    await requireAlive(tx, sandbox.id)
    await removeExpiredTasks(tx, sandbox.id)
    return body(tx, sandbox.id, await listTasks(tx, sandbox.id))
  })
}

function refuseTooMany(tasks: Task[]): void {
  if (tasks.length >= maxTasks) throw conflict(`a sandbox can have at most ${maxTasks} tasks at a time; delete some`)
}

function taskNotFound() {
  return notFound('task not found')
}

import type { Db } from '../store/db.ts'

export async function databaseAnswers(db: Db): Promise<boolean> {
  return db.query('select 1').then(
    () => true,
    () => false,
  )
}

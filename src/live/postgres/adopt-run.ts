// The adoption that runs in this process. It takes minutes in a large repository, so requests only start and watch it.

export interface AdoptedResult {
  id: string
  name: string
  backups: number
  windows: number
  /** What could not be recovered of it. */
  problems: string[]
}

export interface Adoption {
  isRunning: boolean
  /** The number of clusters to adopt, and how many of them have been looked at. */
  total: number
  done: number
  adopted: AdoptedResult[]
  /** The number of clusters in the repository that had a record already. */
  known: number
  /** Clusters that cannot be adopted. */
  unusable: { id: string; reason: string }[]
  /** Why the adoption ended before all clusters were looked at. */
  error: string | null
}

/** Remembers the newest adoption. */
export interface AdoptionRun {
  current: Adoption | undefined
  /** Settles with the current adoption. Never rejects. */
  finished: Promise<void>
}

export function createAdoptionRun(): AdoptionRun {
  return { current: undefined, finished: Promise.resolve() }
}

/** Does nothing while one is running. */
export function startAdoption(run: AdoptionRun, adopt: (adoption: Adoption) => Promise<void>): Adoption {
  if (run.current?.isRunning) return run.current
  const adoption: Adoption = { isRunning: true, total: 0, done: 0, adopted: [], known: 0, unusable: [], error: null }
  run.current = adoption
  run.finished = adopt(adoption)
    .catch((error: Error) => {
      adoption.error = error.message
    })
    .then(() => {
      adoption.isRunning = false
    })
  return adoption
}

/** The superuser of every cluster, and the name of the database in which the platform administers roles. */
export const superuser = 'postgres'

/** The role with which PgBouncer looks up the password of a client. */
export const poolerUser = 'berth_pooler'

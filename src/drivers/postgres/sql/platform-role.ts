/** The superuser of every cluster, and the name of the database in which the platform administers roles. */
export const superuser = 'postgres'

/** The role with which PgBouncer looks up the password of a client. */
export const poolerUser = 'berth_pooler'

/** The role that restores the dump of an import, and the name of its subscription. */
export const importRole = 'berth_import'

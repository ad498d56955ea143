// Descriptions of errors that operations of several areas share.

export const readOnly = 'The token may only read.'
export const noOrganization = 'The organization is unknown or not visible to this token.'
export const overQuota = 'A quota of the organization would be exceeded.'

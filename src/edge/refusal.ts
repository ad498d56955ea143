/** An error that the edge reports to the client itself, as an HTTP status and a machine-readable code. */
export class Refusal extends Error {
  readonly status: number
  readonly code: string
  /** Further header lines of the response, each with its line end. */
  readonly fields: string

  constructor(status: number, code: string, message: string, fields = '') {
    super(message)
    this.status = status
    this.code = code
    this.fields = fields
  }
}

/** Counts the calls of fake drivers. `breakCall(n)` makes the nth call take effect and then throw, like a lost reply. */
export class FakeCalls {
  calls = 0
  /** Runs after the effect of each call, with its number. */
  onCall: (call: number) => unknown = () => undefined
  private broken = 0

  breakCall(nth: number): void {
    this.calls = 0
    this.broken = nth
  }

  protected async called<T>(value: T): Promise<T> {
    const call = ++this.calls
    await this.onCall(call)
    if (call === this.broken) throw new Error(`the reply of call ${call} was lost`)
    return value
  }
}

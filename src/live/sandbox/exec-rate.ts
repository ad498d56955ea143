/** Counts the bytes of output in the last full second. */
export class OutputRate {
  #second = 0
  #bytes = 0
  #bytesBefore = 0

  add(bytes: number): void {
    this.#advance()
    this.#bytes += bytes
  }

  get bytesPerSecond(): number {
    this.#advance()
    return this.#bytesBefore
  }

  #advance(): void {
    const second = Math.floor(Date.now() / 1000)
    if (second === this.#second) return
    this.#bytesBefore = second === this.#second + 1 ? this.#bytes : 0
    this.#bytes = 0
    this.#second = second
  }
}

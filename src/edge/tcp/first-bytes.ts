import type { Socket } from 'node:net'

const timeoutMs = 15_000

/**
 * Reads from a paused socket until `isEnough`, to detect the protocol that the client speaks. The socket is paused again
 * when `found` is called, and closed when the client sends too little in time.
 */
export function readFirstBytes(
  socket: Socket,
  isEnough: (first: Buffer) => boolean,
  found: (first: Buffer) => void,
): void {
  let first = Buffer.alloc(0)
  const timer = setTimeout(() => socket.destroy(), timeoutMs)
  const stopTimer = () => clearTimeout(timer)
  socket.on('error', () => {})
  socket.once('close', stopTimer)
  socket.on('data', function onData(chunk: Buffer) {
    first = Buffer.concat([first, chunk])
    if (!isEnough(first)) return
    stopTimer()
    socket.off('close', stopTimer)
    socket.off('data', onData)
    socket.pause()
    found(first)
  })
  socket.resume()
}

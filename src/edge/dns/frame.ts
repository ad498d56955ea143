/** Prefixes a DNS message with its length, as TCP requires. */
export function frameMessage(message: Buffer): Buffer {
  const length = Buffer.alloc(2)
  length.writeUInt16BE(message.length)
  return Buffer.concat([length, message])
}

/** The first message in a TCP stream; undefined while it is incomplete. */
export function readFrame(received: Buffer): Buffer | undefined {
  if (received.length < 2 || received.length < 2 + received.readUInt16BE(0)) return undefined
  return received.subarray(2, 2 + received.readUInt16BE(0))
}

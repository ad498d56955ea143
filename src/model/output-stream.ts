/** The output streams of a command, numbered as its file descriptors are. */
export const stdoutByte = 1
export const stderrByte = 2

export type OutputStream = typeof stdoutByte | typeof stderrByte

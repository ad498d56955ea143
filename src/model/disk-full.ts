/**
 * Recognizes an exhausted disk or quota in an error message or a log line, whether the text is an errno name (Node.js) or
 * the message of the C library (PostgreSQL, coreutils, Perl).
 */
export function isDiskFull(text: string): boolean {
  return /\b(ENOSPC|EDQUOT)\b|No space left on device|Disk quota exceeded/i.test(text)
}

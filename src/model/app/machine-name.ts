import { randomInt } from 'node:crypto'

const adjectives =
  `amber ancient autumn billowing bitter black blue bold broken calm cold cool crimson damp dark dawn delicate
divine dry empty falling floral fragrant frosty gentle green hidden holy icy late lingering little lively long misty morning
muddy nameless old patient polished proud purple quiet red restless rough shy silent small snowy solitary sparkling spring
still summer throbbing twilight wandering weathered white wild winter wispy withered young`.split(/\s+/)

const nouns =
  `bird breeze brook bush butterfly cherry cloud darkness dawn dew dream dust feather field fire firefly flower fog
forest frog frost glade glitter grass haze hill lake leaf meadow moon morning mountain night paper pine pond rain resonance
river sea shadow shape silence sky smoke snow snowflake sound star sun sunset surf thunder tree violet voice water waterfall
wave wildflower wind wood`.split(/\s+/)

/** Generates a name such as `quiet-river-4711`. */
export function newMachineName(): string {
  const pick = (words: string[]) => words[randomInt(words.length)]
  return `${pick(adjectives)}-${pick(nouns)}-${randomInt(1, 10_000)}`
}

export const machineNamePattern = /^[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?$/

import { expect, test } from 'vitest'
import { typeOf } from '../../scripts/api-types.ts'

test.each([
  [{ type: 'integer' }, 'number'],
  [{ type: 'string', format: 'date-time' }, 'string'],
  [{ type: ['string', 'null'] }, 'string | null'],
  [{ enum: ['on', 'off'] }, '"on" | "off"'],
  [{ anyOf: [{ type: 'boolean' }, { $ref: '#/components/schemas/Volume' }] }, 'boolean | Volume'],
  [{ type: 'array', items: { enum: [1, 2] } }, '(1 | 2)[]'],
  [{ type: 'object', additionalProperties: { type: 'string' } }, 'Record<string, string>'],
  [{ type: 'object', additionalProperties: true }, 'Record<string, unknown>'],
  [
    { type: 'object', required: ['id'], properties: { id: { type: 'string' }, size: { type: 'number' } } },
    '{\n"id": string\n"size"?: number\n}',
  ],
  [{}, 'unknown'],
])('the schema %j becomes the type %s', (schema, type) => {
  expect(typeOf(schema)).toBe(type)
})

import { type Static, Type } from 'typebox'
import {
  type ChangedKey,
  decryptWith,
  deleteSecretKey,
  encryptWith,
  generateSecretKey,
  getSecretKey,
  type KeyRef,
  listSecretKeysOf,
  setSecretKey,
  signWithKey,
  verifyWithKey,
} from '../../actions/app/secret-key.ts'
import { type SecretKey, secretKeyTypes } from '../../model/app/secret-key.ts'
import { toRfc3339 } from '../../model/time.ts'
import { type Route, route } from '../http/route.ts'
import { foreignApp, noApp, notAllowed } from './error-text.ts'
import { ByApp } from './params.ts'
import { older, readMinVersion, type VersionQuery, versionFields, versionQuery, versionView } from './secret.ts'

const ByKey = Type.Object({
  ...ByApp.properties,
  key_name: Type.String({ description: 'The name of the key; the rules are those for secrets.' }),
})

/** Clients send bytes as base64, older ones as arrays of numbers. */
const Bytes = Type.Unsafe<string | number[]>({
  type: ['string', 'array'],
  items: { type: 'integer', minimum: 0, maximum: 255 },
  pattern: '^[A-Za-z0-9+/_-]*={0,2}$',
  maxLength: 350_000,
  maxItems: 262_144,
  description: 'Base64; an array of numbers is accepted as well.',
})
type Bytes = Static<typeof Bytes>

const keyFields = {
  name: Type.String(),
  type: Type.Enum([...secretKeyTypes]),
  public_key: Type.Union([Type.String(), Type.Null()], {
    description: 'The public key of a key pair in base64: SPKI in DER, or the raw 32 bytes for `nacl_box`.',
  }),
  created_at: Type.String({ format: 'date-time' }),
  updated_at: Type.String({ format: 'date-time' }),
}
const KeyView = Type.Object(keyFields, { title: 'SecretKey' })
const ChangedKeyView = Type.Object({ ...keyFields, ...versionFields }, { title: 'ChangedSecretKey' })
const Kind = Type.String({
  description: `One of ${secretKeyTypes.map((type) => `\`${type}\``).join(', ')}.`,
  examples: ['hs256'],
})

const noKey = `${noApp} Or: it has no such key.`
const base = '/v1/apps/{app_name}/secretkeys'
const ByVersion = Type.Object(versionQuery)

export const secretKeyRoutes: Route[] = [
  route({
    method: 'GET',
    path: base,
    id: 'listSecretKeys',
    tag: 'Secrets',
    summary: 'List the keys of an app by name',
    scope: 'read',
    params: ByApp,
    query: Type.Object({
      ...versionQuery,
      types: Type.Optional(Type.String({ description: 'Only keys of these types, separated by commas.' })),
    }),
    status: 200,
    response: Type.Object({ secret_keys: Type.Array(KeyView) }, { title: 'SecretKeyList' }),
    errors: { 403: foreignApp, 404: noApp, 412: older },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const found = await listSecretKeysOf(ctx, params.app_name, {
        types: query.types,
        minVersion: readMinVersion(query),
      })
      return { secret_keys: found.map(keyView) }
    },
  }),
  route({
    method: 'GET',
    path: `${base}/{key_name}`,
    id: 'getSecretKey',
    tag: 'Secrets',
    summary: 'Show a key without its secret part',
    scope: 'read',
    params: ByKey,
    query: ByVersion,
    status: 200,
    response: KeyView,
    errors: { 403: foreignApp, 404: noKey, 412: older },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => keyView(await getSecretKey(ctx, keyRef(params, query))),
  }),
  route({
    method: 'POST',
    path: `${base}/{key_name}`,
    id: 'setSecretKey',
    tag: 'Secrets',
    summary: 'Set a key',
    description: 'Key pairs are in PKCS #8 (DER); `nacl_box` and symmetric keys are raw bytes.',
    scope: 'write',
    action: 'write',
    params: ByKey,
    body: Type.Object({ type: Kind, value: Bytes }),
    status: 201,
    response: ChangedKeyView,
    errors: { 403: notAllowed, 404: noApp },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      const input = { type: body.type, value: readBytes(body.value) }
      return changedView(await setSecretKey(ctx, params.app_name, params.key_name, input))
    },
  }),
  route({
    method: 'POST',
    path: `${base}/{key_name}/generate`,
    id: 'generateSecretKey',
    tag: 'Secrets',
    summary: 'Generate a key',
    scope: 'write',
    action: 'write',
    params: ByKey,
    body: Type.Object({ type: Kind }),
    status: 201,
    response: ChangedKeyView,
    errors: { 403: notAllowed, 404: noApp, 409: 'The app already has a key of this name.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) =>
      changedView(await generateSecretKey(ctx, params.app_name, params.key_name, body.type)),
  }),
  route({
    method: 'DELETE',
    path: `${base}/{key_name}`,
    id: 'deleteSecretKey',
    tag: 'Secrets',
    summary: 'Remove a key',
    scope: 'write',
    params: ByKey,
    status: 200,
    response: Type.Object(versionFields, { title: 'SecretKeysVersion' }),
    errors: { 403: notAllowed, 404: noKey },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => versionView(await deleteSecretKey(ctx, params.app_name, params.key_name)),
  }),
  route({
    method: 'POST',
    path: `${base}/{key_name}/encrypt`,
    id: 'encryptWithSecretKey',
    tag: 'Secrets',
    summary: 'Encrypt with a key',
    description:
      'With `xaes256gcm` and `nacl_secretbox` the result starts with the nonce. With `nacl_box` it is a sealed box, which needs only the public key.',
    scope: 'write',
    params: ByKey,
    query: ByVersion,
    body: Type.Object({ plaintext: Bytes, associated_data: Type.Optional(Bytes) }),
    ignoreNulls: true,
    status: 200,
    response: Type.Object({ ciphertext: Type.String() }, { title: 'Ciphertext' }),
    errors: { 403: notAllowed, 404: noKey, 412: older },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query, body }) => {
      const [text, associated] = [readBytes(body.plaintext), readBytes(body.associated_data)]
      return { ciphertext: written(await encryptWith(ctx, keyRef(params, query), text, associated)) }
    },
  }),
  route({
    method: 'POST',
    path: `${base}/{key_name}/decrypt`,
    id: 'decryptWithSecretKey',
    tag: 'Secrets',
    summary: 'Decrypt with a key',
    scope: 'write',
    params: ByKey,
    query: ByVersion,
    body: Type.Object({ ciphertext: Bytes, associated_data: Type.Optional(Bytes) }),
    ignoreNulls: true,
    status: 200,
    response: Type.Object({ plaintext: Type.String() }, { title: 'Plaintext' }),
    errors: { 403: notAllowed, 404: noKey, 412: older },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query, body }) => {
      const [text, associated] = [readBytes(body.ciphertext), readBytes(body.associated_data)]
      return { plaintext: written(await decryptWith(ctx, keyRef(params, query), text, associated)) }
    },
  }),
  route({
    method: 'POST',
    path: `${base}/{key_name}/sign`,
    id: 'signWithSecretKey',
    tag: 'Secrets',
    summary: 'Sign with a key',
    scope: 'write',
    params: ByKey,
    query: ByVersion,
    body: Type.Object({ plaintext: Bytes }),
    status: 200,
    response: Type.Object({ signature: Type.String() }, { title: 'Signature' }),
    errors: { 403: notAllowed, 404: noKey, 412: older },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query, body }) => ({
      signature: written(await signWithKey(ctx, keyRef(params, query), readBytes(body.plaintext))),
    }),
  }),
  route({
    method: 'POST',
    path: `${base}/{key_name}/verify`,
    id: 'verifyWithSecretKey',
    tag: 'Secrets',
    summary: 'Verify a signature with a key',
    description: 'The status is 400 when the signature does not match.',
    scope: 'write',
    params: ByKey,
    query: ByVersion,
    body: Type.Object({ plaintext: Bytes, signature: Bytes }),
    status: 204,
    errors: { 403: notAllowed, 404: noKey, 412: older },
    wrongTypeStatus: 400,
    run: ({ ctx, params, query, body }) => {
      const signed = { text: readBytes(body.plaintext), signature: readBytes(body.signature) }
      return verifyWithKey(ctx, keyRef(params, query), signed)
    },
  }),
]

function keyRef(params: { app_name: string; key_name: string }, query: VersionQuery): KeyRef {
  return { app: params.app_name, name: params.key_name, minVersion: readMinVersion(query) }
}

/** Accepts both base64 alphabets. */
function readBytes(bytes: Bytes | undefined): Buffer {
  return typeof bytes === 'string' ? Buffer.from(bytes, 'base64') : Buffer.from(bytes ?? [])
}

function written(bytes: Buffer): string {
  return bytes.toString('base64')
}

function keyView(key: SecretKey) {
  return {
    name: key.name,
    type: key.type,
    public_key: key.publicKey === null ? null : written(key.publicKey),
    created_at: toRfc3339(key.createdAt),
    updated_at: toRfc3339(key.updatedAt),
  }
}

function changedView({ version, key }: ChangedKey) {
  return { ...keyView(key), ...versionView(version) }
}

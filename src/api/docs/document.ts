import type { OpenApiDocument } from '../http/openapi.ts'
import { exampleOf } from './example.ts'
import { type Content, type Json, operationsOf } from './shape.ts'

/** Adds an example to every JSON body of a document, the same as the reference shows. */
export function withExamples(document: OpenApiDocument): OpenApiDocument {
  const result = structuredClone(document)
  for (const { path, method, body, responses } of operationsOf(document)) {
    const operation = result.paths[path]![method]!
    if (operation.requestBody) addExample(operation.requestBody as Json, body, true)
    for (const { status, content } of responses) {
      const response = (operation.responses as Record<string, Json>)[status]!
      if (status < '3' && response.content) addExample(response, content, false)
    }
  }
  return result
}

function addExample(place: Json, content: Content | undefined, minimal: boolean): void {
  if (!content?.mediaType.endsWith('json')) return
  const media = (place.content as Record<string, Json>)[content.mediaType]!
  media.example = exampleOf(content.shape, '', minimal)
}

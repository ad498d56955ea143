import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import type { OrgQuotas } from '../../model/account/quota.ts'

export interface Metrics {
  observeRequest(area: string, route: string, status: number, seconds: number): void
  observeTurn(kind: string, result: string, seconds: number): void
  /** Replaces the usage and limits of all organizations. */
  setQuotas(organizations: OrgQuotas[]): void
  text(): Promise<string>
  contentType: string
}

export function createMetrics(version: string): Metrics {
  const registry = new Registry()
  const registers = [registry]
  collectDefaultMetrics({ register: registry })
  new Gauge({ name: 'berth_info', help: 'Always 1; the version is in the label.', labelNames: ['version'], registers })
    .labels(version)
    .set(1)
  const requests = new Histogram({
    name: 'berth_http_request_seconds',
    help: 'Time to answer a request, by operation.',
    labelNames: ['area', 'operation', 'status'],
    buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5],
    registers,
  })
  // Looking up a child by its labels costs more than observing a value.
  const byLabels = new Map<string, Histogram.Internal<string>>()
  const turns = new Counter({
    name: 'berth_work_turns_total',
    help: 'Steps run by the background loop, by kind of resource and result.',
    labelNames: ['kind', 'result'],
    registers,
  })
  const turnSeconds = new Counter({
    name: 'berth_work_seconds_total',
    help: 'Time spent in the background loop, by kind of resource.',
    labelNames: ['kind'],
    registers,
  })
  const quotaLabels = ['organization', 'quota']
  const used = new Gauge({
    name: 'berth_quota_used',
    help: 'How much of a quota an organization uses.',
    labelNames: quotaLabels,
    registers,
  })
  const limit = new Gauge({
    name: 'berth_quota_limit',
    help: 'The quota of an organization; absent when it is unlimited.',
    labelNames: quotaLabels,
    registers,
  })
  return {
    observeRequest(area, route, status, seconds) {
      const key = `${area} ${route} ${status}`
      const histogram = byLabels.get(key) ?? requests.labels(area, route, String(status))
      byLabels.set(key, histogram)
      histogram.observe(seconds)
    },
    observeTurn(kind, result, seconds) {
      turns.labels(kind, result).inc()
      turnSeconds.labels(kind).inc(seconds)
    },
    setQuotas(organizations) {
      used.reset()
      limit.reset()
      for (const { slug, quotas } of organizations) {
        for (const quota of quotas) {
          used.labels(slug, quota.name).set(quota.used)
          if (quota.limit !== null) limit.labels(slug, quota.name).set(quota.limit)
        }
      }
    },
    text: () => registry.metrics(),
    contentType: registry.contentType,
  }
}

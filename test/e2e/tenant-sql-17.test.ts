import { abuseOf } from '../support/attack/abuse.ts'
import { attackCluster } from '../support/attack/suite.ts'

attackCluster('17', abuseOf)

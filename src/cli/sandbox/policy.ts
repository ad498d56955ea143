import type { Command } from 'commander'
import type { NetworkPolicy } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples } from '../command.ts'
import { printResult, sanitize, table } from '../output.ts'
import { allowSandboxFirst, type SandboxCli, sandboxPath, withSandboxArgument } from './find.ts'

type Rule = NetworkPolicy['rules'][number]

const defaultsInclude = 'defaults'
const anyDomain = '*'

export function addPolicyCommands(sandbox: Command, cli: SandboxCli): void {
  const policy = sandbox.command('policy').description('the network policy of a sandbox')
  allowSandboxFirst(policy)
  policy.addHelpText(
    'after',
    `
A domain is a name such as example.com, *.example.com for all its subdomains, or * for everything. The rule with the most
specific domain applies. With rules, domains without a rule are denied; if the first rule is added by "deny", all other
domains stay allowed. Without rules, a sandbox can reach everything except the platform, the local networks and other
sandboxes.`,
  )
  addExamples(
    policy,
    'berth sandbox policy show demo',
    "berth sandbox policy deny demo '*'",
    'berth sandbox policy allow demo pypi.org files.pythonhosted.org',
  )

  const show = withSandboxArgument(policy.command('show'))
    .description('show the rules of a sandbox')
    .action((name: string) => showPolicy(cli, name))
  addExamples(show, 'berth sandbox policy show demo')

  addRuleCommand(policy, cli, 'allow', 'allow a sandbox to reach domains')
  addRuleCommand(policy, cli, 'deny', 'deny a sandbox access to domains')

  const reset = withSandboxArgument(policy.command('reset'))
    .description('remove all rules')
    .action((name: string) => setPolicy(cli, name, { rules: [] }))
  addExamples(reset, 'berth sandbox policy reset demo')
}

function addRuleCommand(policy: Command, cli: SandboxCli, action: 'allow' | 'deny', description: string): void {
  const command = withSandboxArgument(policy.command(action))
    .description(description)
    .argument(
      '<domain...>',
      action === 'allow' ? 'domains; "defaults" stands for those that most programs need' : 'domains',
    )
    .action((name: string, domains: string[]) => addRules(cli, name, action, domains))
  addExamples(command, `berth sandbox policy ${action} demo example.com '*.example.com'`)
}

async function addRules(cli: SandboxCli, name: string, action: 'allow' | 'deny', domains: string[]): Promise<void> {
  const { rules } = await getPolicy(cli, name)
  await setPolicy(cli, name, { rules: withRules(rules, action, domains) })
}

/**
 * A new rule replaces the one for the same domain. A policy with rules denies everything else, so when the first rule
 * denies some domains, a rule that allows the others is added.
 */
export function withRules(rules: Rule[], action: 'allow' | 'deny', domains: string[]): Rule[] {
  const isFirstDeny = rules.length === 0 && action === 'deny' && !domains.includes(anyDomain)
  const isNamed = ({ domain, include }: Rule) => domains.includes(domain ?? include ?? '')
  const added = domains.map((domain): Rule => {
    return domain === defaultsInclude && action === 'allow' ? { include: domain } : { domain, action }
  })
  const allowRest: Rule[] = isFirstDeny ? [{ domain: anyDomain, action: 'allow' }] : []
  return [...allowRest, ...rules.filter((rule) => !isNamed(rule)), ...added]
}

function getPolicy(cli: SandboxCli, name: string): Promise<NetworkPolicy> {
  return request(cli.session(), 'GET', `${sandboxPath(name)}/policy/network`)
}

async function showPolicy(cli: SandboxCli, name: string): Promise<void> {
  const terminal = cli.terminal()
  const policy = await getPolicy(cli, name)
  if (policy.rules.length === 0 && !terminal.json) {
    return terminal.note(
      `No rules: ${sanitize(name)} can reach everything except the platform, the local networks and other sandboxes.`,
    )
  }
  const rows = policy.rules.map((rule) =>
    rule.include === undefined
      ? [rule.action, rule.domain]
      : ['allow', `${rule.include} (the names that most programs need)`],
  )
  const isClosed = !policy.rules.some(({ domain }) => domain === anyDomain)
  const all = isClosed ? [...rows, ['deny', 'everything else']] : rows
  printResult(terminal, policy, () => table(['ACTION', 'DOMAIN'], all, terminal.colors))
}

async function setPolicy(cli: SandboxCli, name: string, policy: NetworkPolicy): Promise<void> {
  await request(cli.session(), 'POST', `${sandboxPath(name)}/policy/network`, policy)
  await showPolicy(cli, name)
}

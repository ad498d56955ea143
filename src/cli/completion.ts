// Completion scripts, generated from the commands themselves so that they are never out of date. The scripts of all
// three shells work the same way: they follow the words up to the cursor to find the command, then offer its
// subcommands, values and options.
import { Argument, type Command, type Option } from 'commander'
import { addExamples, type Cli } from './command.ts'

interface OptionInfo {
  flags: string[]
  description: string
  takesValue: boolean
  /** The possible values; with `directory` the shell completes a directory name. */
  values: string[] | 'directory'
}

interface CommandInfo {
  /** `berth apps create` */
  path: string
  /** The parent's path followed by the name and by each alias. */
  spellings: string[]
  words: { name: string; description: string }[]
  options: OptionInfo[]
}

const shells = { bash: bashScript, zsh: zshScript, fish: fishScript }
type Shell = keyof typeof shells

export function addCompletionCommand(program: Command, cli: Cli): void {
  const completion = program
    .command('completion')
    .description('print a script that lets your shell complete commands and options')
    .addArgument(new Argument('<shell>', 'the shell to print the script for').choices(Object.keys(shells)))
    .action((shell: Shell) => cli.terminal().print(completionScript(program, shell)))
  addExamples(
    completion,
    'source <(berth completion bash)',
    'berth completion zsh > ~/.zfunc/_berth',
    'berth completion fish > ~/.config/fish/completions/berth.fish',
  )
}

export function completionScript(program: Command, shell: Shell): string {
  const commands = describeCommands(program, undefined, [])
  const withValue = commands.flatMap(({ options }) => options).filter(({ takesValue }) => takesValue)
  const unique = new Map(withValue.map((optionInfo) => [optionInfo.flags.join(' '), optionInfo]))
  return shells[shell](commands, [...unique.values()])
}

function describeCommands(command: Command, parent: CommandInfo | undefined, inherited: OptionInfo[]): CommandInfo[] {
  const help = command.createHelp()
  const names = [command.name(), ...command.aliases()]
  const own = help.visibleOptions(command).map(describeOption)
  const subcommands = help.visibleCommands(command)
  const info: CommandInfo = {
    path: parent ? `${parent.path} ${command.name()}` : command.name(),
    spellings: parent ? names.map((name) => `${parent.path} ${name}`) : names,
    words: [...subcommands.map(describeSubcommand), ...describeArgumentValues(command)],
    options: [
      ...own,
      ...inherited.filter(({ flags }) => !own.some((optionInfo) => optionInfo.flags.at(-1) === flags.at(-1))),
    ],
  }
  // Only the program itself has --version. Its other options apply to every command.
  const inheritedBelow = info.options.filter(({ flags }) => !flags.includes('--version'))
  const below = subcommands.filter((subcommand) => subcommand.name() !== 'help')
  const helpCommand = below.length > 0 ? [describeHelp(info)] : []
  return [info, ...helpCommand, ...below.flatMap((each) => describeCommands(each, info, inheritedBelow))]
}

function describeHelp({ path, words }: CommandInfo): CommandInfo {
  return {
    path: `${path} help`,
    spellings: [`${path} help`],
    words: words.filter(({ name }) => name !== 'help'),
    options: [],
  }
}

function describeSubcommand(command: Command): CommandInfo['words'][number] {
  return { name: command.name(), description: command.description() }
}

function describeArgumentValues(command: Command): CommandInfo['words'] {
  const values = command.registeredArguments[0]?.argChoices ?? []
  return values.map((name) => ({ name, description: '' }))
}

function describeOption(option: Option): OptionInfo {
  return {
    flags: [option.short, option.long].filter((flag) => flag !== undefined),
    description: option.description,
    takesValue: option.required || option.optional,
    values: option.argChoices ?? (option.flags.includes('<directory>') ? 'directory' : []),
  }
}

function bashScript(commands: CommandInfo[], withValue: OptionInfo[]): string {
  const words = (command: CommandInfo) => quote(command.words.map(({ name }) => name).join(' '))
  const options = (command: CommandInfo) => quote(command.options.flatMap(({ flags }) => flags).join(' '))
  const offer = (list: string) => `COMPREPLY=($(compgen -W ${list} -- "$cur"))`
  return `# bash completion for berth
_berth() {
  local cur=\${COMP_WORDS[COMP_CWORD]} at=berth words='' options='' i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case \${COMP_WORDS[i]} in
      ${flagPattern(withValue)}) ((i++)); continue ;;
    esac
    case "$at \${COMP_WORDS[i]}" in
${withoutRoot(commands)
  .map((command) => `      ${spellingPattern(command)}) at=${quote(command.path)} ;;`)
  .join('\n')}
    esac
  done
  if ((i > COMP_CWORD)); then
    case \${COMP_WORDS[COMP_CWORD - 1]} in
${valueCases(withValue, (list) => offer(quote(list)), 'COMPREPLY=($(compgen -d -- "$cur"))')}
    esac
    return
  fi
  case $at in
${commands.map((command) => `    ${quote(command.path)}) words=${words(command)} options=${options(command)} ;;`).join('\n')}
  esac
  if [[ $cur == -* || -z $words ]]; then words=$options; fi
  ${offer('"$words"')}
}
complete -F _berth berth`
}

function zshScript(commands: CommandInfo[], withValue: OptionInfo[]): string {
  const entry = (name: string, description: string) => quote(description ? `${name}:${description}` : name)
  const words = ({ words }: CommandInfo) => words.map(({ name, description }) => entry(name, description)).join(' ')
  const options = (command: CommandInfo) =>
    command.options.flatMap(({ flags, description }) => flags.map((flag) => entry(flag, description))).join(' ')
  return `#compdef berth
# zsh completion for berth
_berth() {
  local at=berth i
  local -a commands options
  for ((i = 2; i < CURRENT; i++)); do
    case $words[i] in
      ${flagPattern(withValue)}) ((i++)); continue ;;
    esac
    case "$at $words[i]" in
${withoutRoot(commands)
  .map((command) => `      ${spellingPattern(command)}) at=${quote(command.path)} ;;`)
  .join('\n')}
    esac
  done
  if ((i > CURRENT)); then
    case $words[CURRENT-1] in
${valueCases(withValue, (list) => `compadd -- ${list}`, '_files -/')}
    esac
    return
  fi
  case $at in
${commands.map((command) => `    ${quote(command.path)}) commands=(${words(command)}) options=(${options(command)}) ;;`).join('\n')}
  esac
  if [[ $words[CURRENT] == -* || $#commands == 0 ]]; then
    _describe -o option options
  else
    _describe command commands
  fi
}
if [[ $funcstack[1] == _berth ]]; then
  _berth "$@"
else
  compdef _berth berth
fi`
}

function fishScript(commands: CommandInfo[], withValue: OptionInfo[]): string {
  const flags = withValue.flatMap((optionInfo) => optionInfo.flags).join(' ')
  return `# fish completion for berth
function __berth_at
  set -l at berth
  set -l skip 0
  for word in (commandline -opc)[2..-1]
    if test $skip = 1
      set skip 0
      continue
    end
    if contains -- $word ${flags}
      set skip 1
      continue
    end
    switch "$at $word"
${withoutRoot(commands)
  .map(
    ({ path, spellings }) =>
      `      case ${spellings.map(quoteForFish).join(' ')}\n        set at ${quoteForFish(path)}`,
  )
  .join('\n')}
    end
  end
  test "$at" = "$argv[1]"
end
complete -c berth -f
${commands.flatMap(fishLines).join('\n')}`
}

function fishLines({ path, words, options }: CommandInfo): string[] {
  const start = `complete -c berth -n "__berth_at ${quoteForFish(path)}"`
  const description = (text: string) => (text ? ` -d ${quoteForFish(text)}` : '')
  return [
    ...words.map((word) => `${start} -a ${word.name}${description(word.description)}`),
    ...options.map((option) => `${start}${fishFlags(option)}${fishValue(option)}${description(option.description)}`),
  ]
}

function fishFlags({ flags }: OptionInfo): string {
  return flags.map((flag) => (flag.startsWith('--') ? ` -l ${flag.slice(2)}` : ` -s ${flag.slice(1)}`)).join('')
}

function fishValue({ takesValue, values }: OptionInfo): string {
  if (!takesValue) return ''
  if (values === 'directory') return " -x -a '(__fish_complete_directories)'"
  return values.length > 0 ? ` -x -a ${quoteForFish(values.join(' '))}` : ' -x'
}

function valueCases(withValue: OptionInfo[], offer: (list: string) => string, offerDirectory: string): string {
  return withValue
    .filter(({ values }) => values.length > 0)
    .map(({ flags, values }) => {
      return `      ${flags.join(' | ')}) ${values === 'directory' ? offerDirectory : offer(values.join(' '))} ;;`
    })
    .join('\n')
}

function withoutRoot(commands: CommandInfo[]): CommandInfo[] {
  return commands.slice(1)
}

function flagPattern(optionInfos: OptionInfo[]): string {
  return optionInfos.flatMap(({ flags }) => flags).join(' | ')
}

function spellingPattern({ spellings }: CommandInfo): string {
  return spellings.map(quote).join(' | ')
}

function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`
}

function quoteForFish(text: string): string {
  return `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`
}

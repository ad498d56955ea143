// Completion scripts, printed from the commands themselves so that they cannot fall behind. All three shells do the
// same: walk the words up to the cursor to find the command they name, then offer what that command takes.
import { Argument, type Command, type Option } from 'commander'
import { addExamples, type Cli } from './command.ts'

interface Choice {
  flags: string[]
  about: string
  takesValue: boolean
  /** What the value may be; `directory` asks the shell for one. */
  values: string[] | 'directory'
}

interface Place {
  /** `berth apps create` */
  path: string
  /** The path of its parent with each of its own names. */
  spellings: string[]
  words: { name: string; about: string }[]
  options: Choice[]
}

const shells = { bash: bashScript, zsh: zshScript, fish: fishScript }
type Shell = keyof typeof shells

export function addCompletionCommand(program: Command, cli: Cli): void {
  const completion = program
    .command('completion')
    .description('print a script that lets your shell complete commands and options')
    .addArgument(new Argument('<shell>', 'the shell it is for').choices(Object.keys(shells)))
    .action((shell: Shell) => cli.terminal().print(completionScript(program, shell)))
  addExamples(
    completion,
    'source <(berth completion bash)',
    'berth completion zsh > ~/.zfunc/_berth',
    'berth completion fish > ~/.config/fish/completions/berth.fish',
  )
}

export function completionScript(program: Command, shell: Shell): string {
  const places = describePlaces(program, undefined, [])
  const withValue = places.flatMap(({ options }) => options).filter(({ takesValue }) => takesValue)
  const unique = new Map(withValue.map((choice) => [choice.flags.join(' '), choice]))
  return shells[shell](places, [...unique.values()])
}

function describePlaces(command: Command, parent: Place | undefined, inherited: Choice[]): Place[] {
  const help = command.createHelp()
  const names = [command.name(), ...command.aliases()]
  const own = help.visibleOptions(command).map(describeOption)
  const subcommands = help.visibleCommands(command)
  const place: Place = {
    path: parent ? `${parent.path} ${command.name()}` : command.name(),
    spellings: parent ? names.map((name) => `${parent.path} ${name}`) : names,
    words: [...subcommands.map(describeWord), ...argumentWords(command)],
    options: [...own, ...inherited.filter(({ flags }) => !own.some((choice) => choice.flags.at(-1) === flags.at(-1)))],
  }
  // The version is asked of the program alone; its other options go with every command.
  const passedOn = place.options.filter(({ flags }) => !flags.includes('--version'))
  const below = subcommands.filter((subcommand) => subcommand.name() !== 'help')
  const helpPlace = below.length > 0 ? [describeHelp(place)] : []
  return [place, ...helpPlace, ...below.flatMap((each) => describePlaces(each, place, passedOn))]
}

function describeHelp({ path, words }: Place): Place {
  return {
    path: `${path} help`,
    spellings: [`${path} help`],
    words: words.filter(({ name }) => name !== 'help'),
    options: [],
  }
}

function describeWord(command: Command): Place['words'][number] {
  return { name: command.name(), about: command.description() }
}

function argumentWords(command: Command): Place['words'] {
  const values = command.registeredArguments[0]?.argChoices ?? []
  return values.map((name) => ({ name, about: '' }))
}

function describeOption(option: Option): Choice {
  return {
    flags: [option.short, option.long].filter((flag) => flag !== undefined),
    about: option.description,
    takesValue: option.required || option.optional,
    values: option.argChoices ?? (option.flags.includes('<directory>') ? 'directory' : []),
  }
}

function bashScript(places: Place[], withValue: Choice[]): string {
  const words = (place: Place) => quote(place.words.map(({ name }) => name).join(' '))
  const options = (place: Place) => quote(place.options.flatMap(({ flags }) => flags).join(' '))
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
${subplaces(places)
  .map((place) => `      ${spellingPattern(place)}) at=${quote(place.path)} ;;`)
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
${places.map((place) => `    ${quote(place.path)}) words=${words(place)} options=${options(place)} ;;`).join('\n')}
  esac
  if [[ $cur == -* || -z $words ]]; then words=$options; fi
  ${offer('"$words"')}
}
complete -F _berth berth`
}

function zshScript(places: Place[], withValue: Choice[]): string {
  const entry = (name: string, about: string) => quote(about ? `${name}:${about}` : name)
  const commands = ({ words }: Place) => words.map(({ name, about }) => entry(name, about)).join(' ')
  const options = (place: Place) =>
    place.options.flatMap(({ flags, about }) => flags.map((flag) => entry(flag, about))).join(' ')
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
${subplaces(places)
  .map((place) => `      ${spellingPattern(place)}) at=${quote(place.path)} ;;`)
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
${places.map((place) => `    ${quote(place.path)}) commands=(${commands(place)}) options=(${options(place)}) ;;`).join('\n')}
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

function fishScript(places: Place[], withValue: Choice[]): string {
  const flags = withValue.flatMap((choice) => choice.flags).join(' ')
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
${subplaces(places)
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
${places.flatMap(fishLines).join('\n')}`
}

function fishLines({ path, words, options }: Place): string[] {
  const start = `complete -c berth -n "__berth_at ${quoteForFish(path)}"`
  const about = (text: string) => (text ? ` -d ${quoteForFish(text)}` : '')
  return [
    ...words.map((word) => `${start} -a ${word.name}${about(word.about)}`),
    ...options.map((option) => `${start}${fishFlags(option)}${fishValue(option)}${about(option.about)}`),
  ]
}

function fishFlags({ flags }: Choice): string {
  return flags.map((flag) => (flag.startsWith('--') ? ` -l ${flag.slice(2)}` : ` -s ${flag.slice(1)}`)).join('')
}

function fishValue({ takesValue, values }: Choice): string {
  if (!takesValue) return ''
  if (values === 'directory') return " -x -a '(__fish_complete_directories)'"
  return values.length > 0 ? ` -x -a ${quoteForFish(values.join(' '))}` : ' -x'
}

function valueCases(withValue: Choice[], offer: (list: string) => string, offerDirectory: string): string {
  return withValue
    .filter(({ values }) => values.length > 0)
    .map(({ flags, values }) => {
      return `      ${flags.join(' | ')}) ${values === 'directory' ? offerDirectory : offer(values.join(' '))} ;;`
    })
    .join('\n')
}

/** Those that a word leads to: all but the program itself. */
function subplaces(places: Place[]): Place[] {
  return places.slice(1)
}

function flagPattern(choices: Choice[]): string {
  return choices.flatMap(({ flags }) => flags).join(' | ')
}

function spellingPattern({ spellings }: Place): string {
  return spellings.map(quote).join(' | ')
}

function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`
}

function quoteForFish(text: string): string {
  return `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`
}

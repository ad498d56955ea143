#!/bin/sh
# Lints shell and Perl: shellcheck for shell scripts, perl -cw and perlcritic for Perl programs.
# Takes no arguments. Exits with 1 if any file has a problem. scripts/setup.sh check installs the linters.
set -eu

cd "$(dirname "$0")/.."
status=0

# Prints the files below the source folders with this extension. File names contain no spaces.
list_files() {
  find scripts src test bench -name "*.$1" -type f | LC_ALL=C sort
}

# Perl programs load their libraries relative to their own path, so they are compiled by absolute path. perl -c exits
# with 0 in spite of warnings, so any other output than "syntax OK" counts.
compile_perl() {
  path=$PWD/$1
  library=$(dirname "$path")/lib.pl
  if is_library "$path" && [ "$path" != "$library" ] && [ -e "$library" ]; then
    # Files that programs load use the constants of the lib.pl beside them, which the programs load first.
    set -- "-Mstrict;BEGIN{require q($library)}"
  else
    set --
  fi
  output=$(perl -cw "$@" "$path" 2>&1) || true
  if [ "$output" = "$path syntax OK" ]; then return 0; fi
  printf '%s\n' "$output"
  return 1
}

is_library() {
  [ "$(tail -n 1 "$1")" = '1;' ]
}

# shellcheck disable=SC2046 # a list of file names
shellcheck berth .ci/run $(list_files sh) || status=1

for program in $(list_files pl); do
  compile_perl "$program" || status=1
done

# shellcheck disable=SC2046 # a list of file names
perlcritic --quiet --profile .perlcriticrc $(list_files pl) || status=1

exit "$status"

#!/usr/bin/env bash
# Takes the symbols out of a program into a file beside it, PROGRAM.debug, which gdb, perf and backtraces find by the name that the
# program keeps of it (.gnu_debuglink) and by the build id of both. Does nothing if that was done. Run by `make build`.
#
#   scripts/split-debug.sh PROGRAM
#
# To install: the program by itself is enough. PROGRAM.debug belongs beside it, or in /usr/lib/debug with the same path.
set -euo pipefail

readonly PROGRAM=$1
[ -f "$PROGRAM" ] || { echo "split-debug: there is no $PROGRAM" >&2; exit 1; }
# Not by `grep -q`: it ends at the first match, and then readelf fails if it has not written everything.
has_section() { [[ "$(readelf --section-headers --wide "$PROGRAM")" == *" $1 "* ]]; }

if ! has_section .symtab; then
  if has_section .gnu_debuglink; then exit 0; fi
  echo "split-debug: $PROGRAM has no symbols" >&2
  exit 1
fi
# Beside it, so that what follows is a renaming: cargo's own copy, which is the same file by another name, keeps its symbols.
work=$(mktemp -d "$PROGRAM.split-XXXXXX")
trap 'rm -rf "$work"' EXIT
readonly DEBUG="$work/$(basename "$PROGRAM").debug" STRIPPED="$work/stripped"
objcopy --only-keep-debug --compress-debug-sections "$PROGRAM" "$DEBUG"
chmod a-x "$DEBUG"
objcopy --strip-all --add-gnu-debuglink="$DEBUG" "$PROGRAM" "$STRIPPED"
mv "$DEBUG" "$PROGRAM.debug"
mv "$STRIPPED" "$PROGRAM"

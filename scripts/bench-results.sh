# Where bench.sh and bench-schemes.sh keep their results, and how they measure; each sources this.
#
# Sets LAB, OUT and RESULTS, goes to the repository's root, and leaves unless there is a binary.
# shellcheck shell=bash
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly LAB="${LAB:-target/release/strongroom-lab}"
readonly OUT="${BENCH_DIR:-target/bench}"
readonly RESULTS="$OUT/$1"
readonly NAME="${0##*/}"
mkdir -p "$OUT"

say() { printf '\n%s: %s\n' "${NAME%.sh}" "$*" >&2; }
unknown_option() { say "unknown option $1; see the beginning of scripts/$NAME"; exit 2; }
[ -x "$LAB" ] || { say "there is no $LAB; run: make lab"; exit 1; }

# What failed, for the last word.
failed=()
# Each appends to the same file; the first begins it.
append=()
# Runs experiment $2 with the rest as its options; $1 is what it is called if it fails.
record() {
  local called=$1
  shift
  "$LAB" "$@" --json "$RESULTS" "${append[@]}" || failed+=("$called")
  append=(--append)
}

#!/usr/bin/env bash
# The WAN paper's experiment over an emulated link, and its report: `make bench-wan`. As root.
#
#   scripts/bench-wan.sh                    about 20 minutes, over 100 Mbit/s
#   scripts/bench-wan.sh --rate 1Gbit       the same over another link
#   scripts/bench-wan.sh --full …           the paper's whole grid, hours
#
# STRONGROOM  the binary        [target/release/strongroom]
# BENCH_DIR   where results go  [target/bench]
# REPORT      0: leave docs/ as they are
set -euo pipefail
cd "$(dirname "$0")/.."

readonly STRONGROOM="${STRONGROOM:-target/release/strongroom}"
readonly RESULTS="${BENCH_DIR:-target/bench}/wan.jsonl"
mkdir -p "$(dirname "$RESULTS")"
[ -x "$STRONGROOM" ] || { echo "bench-wan: there is no $STRONGROOM; run: make build" >&2; exit 1; }

quick=(--quick)
if [ "${1:-}" = --full ]; then
  quick=()
  shift
fi
case " $* " in *" --rate "*) link=("$@") ;; *) link=(--rate 100Mbit "$@") ;; esac

failed=()
append=()
experiment() {
  printf '\nbench-wan: %s\n' "$*" >&2
  "$STRONGROOM" bench wan "${quick[@]}" "${link[@]}" --name "$@" --json "$RESULTS" "${append[@]}" || failed+=("$1")
  append=(--append)
}

experiment wan
experiment wan-loss --loss 0.1% --jitter 1ms --delays 8ms,64ms --sizes 64k,256k
experiment wan-many --initiators 1,2,4 --targets 2 --delays 8ms,64ms --sizes 64k --settings S2-1,OP-10,auto
experiment wan-paper --suites 3des --delays 8ms,64ms --sizes 16k,64k,256k

if [ "${REPORT:-1}" != 0 ]; then
  "$STRONGROOM" bench report "$RESULTS" --plots docs/bench --html docs/bench/wan.html --wan docs/performance.md
  cp "$RESULTS" docs/bench/wan.jsonl
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "bench-wan: these did not go well: ${failed[*]}" >&2
  exit 1
fi

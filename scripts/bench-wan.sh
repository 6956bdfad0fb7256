#!/usr/bin/env bash
# The WAN paper's experiment over an emulated link, and its report: `make bench-wan`. As root.
#
#   scripts/bench-wan.sh                    about 25 minutes, over 100 Mbit/s; auto over 1 Gbit/s as well
#   scripts/bench-wan.sh --rate 1Gbit       the same over another link
#   scripts/bench-wan.sh --full …           the paper's whole grid, hours
#   scripts/bench-wan.sh --tiny …           everything once, for a moment: that it works, not how fast (under a minute)
#
# A measurement that fails is kept and shown as such, and an experiment that cannot be made is named at the end: the others go on.
#
# LAB         the lab binary                    [target/release/strongroom-lab]
# BENCH_DIR   where results go                  [target/bench]
# DOCS        the directory of bench/ [docs]
# REPORT      0: leave DOCS as it is
set -euo pipefail
cd "$(dirname "$0")/.."

readonly LAB="${LAB:-target/release/strongroom-lab}"
readonly RESULTS="${BENCH_DIR:-target/bench}/wan.jsonl"
readonly DOCS="${DOCS:-docs}"
mkdir -p "$(dirname "$RESULTS")"
[ -x "$LAB" ] || { echo "bench-wan: there is no $LAB; run: make lab" >&2; exit 1; }

form=quick
case "${1:-}" in --full | --tiny) form=${1#--}; shift ;; esac
given=("$@")
rate=(--rate 100Mbit)
case " $* " in *" --rate "*) rate=() ;; esac

failed=()
append=()
readonly BEGUN=$SECONDS
count=8
[ "$form" = quick ] || count=7
number=0
# experiment NAME ARGUMENTS…
experiment() {
  number=$((number + 1))
  printf '\nbench-wan: %d of %d, after %d:%02d: %s\n' "$number" "$count" $(((SECONDS - BEGUN) / 60)) $(((SECONDS - BEGUN) % 60)) "$*" >&2
  "$LAB" wan --name "$@" "${given[@]}" --json "$RESULTS" "${append[@]}" || failed+=("$1")
  append=(--append)
}

case "$form" in
  quick)
    # The figures by size are of 8 and 64 ms; those by delay are means over three sizes.
    quick=(--quick --seconds 0.75 --warm-up 0.25)
    experiment wan "${quick[@]}" "${rate[@]}" --delays 8ms,64ms --sizes 16k,32k,64k,128k,256k,512k,1m,2m \
      --settings S2-1,S2-5,OP-2,OP-4,OP-6,OP-8,OP-10,auto
    experiment wan "${quick[@]}" "${rate[@]}" --delays 0ms,1ms,2ms,4ms,16ms,32ms --sizes 16k,128k,2m \
      --settings S2-1,S2-5,OP-2,OP-6,OP-10,auto
    # Depths that fill the link, as the paper's would not: auto is held against the best. It has to find its own first.
    loss=(--delays 64ms --sizes 64k --settings S2-1,OP-10,OP-32,OP-64,auto --runs 1 --warm-up 6)
    many=("${quick[@]}" --initiators 1,2,4 --delays 8ms,64ms --sizes 64k --settings S2-1,OP-10,auto)
    paper=("${quick[@]}" --delays 8ms,64ms --sizes 16k,128k --settings S2-1,S2-5,OP-2,OP-10,auto)
    # Ten seconds: BBR looks at the way with an empty pipe once in each ten.
    steady=(--delays 64ms --sizes 64k,128k,256k,1m,2m --settings auto --runs 1 --warm-up 20 --seconds 10)
    ;;
  full)
    experiment wan "${rate[@]}"
    loss=(--delays 8ms,64ms --sizes 64k,256k --settings S2-1,S2-5,OP-2,OP-10,OP-32,OP-64,auto --warm-up 6)
    many=(--initiators 1,2,4 --delays 8ms,64ms --sizes 64k)
    paper=()
    steady=(--delays 64ms --sizes 64k,128k,256k,512k,1m,2m --settings OP-10,auto --warm-up 20 --seconds 20)
    ;;
  tiny)
    # Four MiB are under way at least: over 100 Mbit/s that would be no moment.
    [ ${#rate[@]} -eq 0 ] || rate=(--rate 1Gbit)
    tiny=(--delays 2ms --sizes 64k --settings S2-5,auto --volume-size 32MiB --socket-seconds 2 --seconds 0.2 --warm-up 0.1 --runs 1)
    experiment wan "${rate[@]}" "${tiny[@]}" --delays 0ms --sizes 16k --settings S2-1,OP-2,OP-4
    loss=("${tiny[@]}") many=("${tiny[@]}" --initiators 1,2) paper=("${tiny[@]}") steady=("${tiny[@]}")
    ;;
esac
experiment wan-steady "${rate[@]}" "${steady[@]}"
given=()
# Of which 1023 Mbit/s are left for TCP's payload; in the first seconds BBR uses 99 % of that.
experiment wan-steady-gigabit "${steady[@]}" --rate 1060Mbit
given=("$@")
experiment wan-loss "${rate[@]}" --loss 0.1% --jitter 1ms "${loss[@]}"
experiment wan-loss-percent "${rate[@]}" --loss 1% "${loss[@]}"
experiment wan-many "${rate[@]}" --targets 2 "${many[@]}"
experiment wan-paper "${rate[@]}" --suites 3des "${paper[@]}"

if [ "${REPORT:-1}" != 0 ]; then
  mkdir -p "$DOCS/bench"
  "$LAB" report "$RESULTS" --plots "$DOCS/bench" --html "$DOCS/bench/wan.html" --wan "$DOCS/bench/wan.md"
  cp "$RESULTS" "$DOCS/bench/wan.jsonl"
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "bench-wan: these did not go well: ${failed[*]}" >&2
  exit 1
fi

#!/usr/bin/env bash
# Runs the experiments into one file of results and makes the tables, plots and the page from it: `make bench`.
#
#   scripts/bench.sh           the usual grid, about 20 minutes
#   scripts/bench.sh --quick   the same with shorter measurements, about 11 minutes
#   scripts/bench.sh --full    the papers' whole grid, hours
#   scripts/bench.sh --tiny    everything once, as short as it goes: is it alive? Writes nothing into docs/
#
# LAB         the lab binary        [target/release/strongroom-lab]
# BENCH_DIR   where results go      [target/bench]
#
# An experiment that cannot run here (something is not installed, no root) is skipped with a word; one that fails is kept
# as failed in the results, and this script ends with an error after everything else was measured.
set -euo pipefail
. "$(dirname "$0")/bench-results.sh" results.jsonl

experiment() {
  say "$1"
  record "$1" "$@"
}

case "${1:-}" in
  --full)
    time=(--seconds 5 --warm-up 1 --runs 5)
    rawio_sizes=512,4k,8k,64k,1m depths=1,16,128 initiators=1,2,4,8 stream_sizes=512,4k,8k,64k,1m
    peers=(--backing both --sizes "$rawio_sizes" --depths "$depths" --initiators 1,4 "${time[@]}")
    btio=(--class A --initiators 1,4,9 --runs 3) dbench=(--clients 1,2,4,8 --seconds 60)
    ;;
  --tiny)
    time=(--seconds 0.2 --warm-up 0.05 --runs 1)
    rawio_sizes=512,4k depths=4 initiators=1 stream_sizes=4k
    peers=(--sizes 4k --volume-size 16MiB "${time[@]}")
    btio=(--class S --initiators 1,4 --runs 1) dbench=(--clients 1 --seconds 3 --sync no)
    ;;
  "" | --quick)
    # All patterns and sizes, and two narrow grids around 4 KiB: what more initiators and a longer queue change.
    time=(--seconds 1 --warm-up 0.3 --runs 3)
    rawio_sizes=512,4k,8k,64k,1m depths=16 initiators=1 stream_sizes=512,4k,8k,64k,1m
    peers=(--sizes 4k,64k --seconds 0.5 --warm-up 0.2 --runs 3)
    btio=(--class A --dumps 2 --initiators 1,4,9 --runs 3) dbench=(--clients 1,4 --seconds 6)
    if [ "${1:-}" = "--quick" ]; then
      time=(--seconds 0.4 --warm-up 0.15 --runs 3)
      peers=(--sizes 4k,64k --seconds 0.3 --warm-up 0.15 --runs 3)
      btio=(--class A --dumps 1 --initiators 1,4,9 --runs 1) dbench=(--clients 1,4 --seconds 3)
    fi
    ;;
  *) unknown_option "$1" ;;
esac

rm -f "$RESULTS"
experiment rawio --schemes all --sizes "$rawio_sizes" --depths "$depths" --initiators "$initiators" "${time[@]}"
if [ -z "${1:-}" ] || [ "$1" = "--quick" ]; then
  experiment rawio --name rawio-initiators --schemes S0,S2-1,S2-5 --patterns randread,seqwrite --sizes 4k --initiators 1,2,4,8 "${time[@]}"
  experiment rawio --name rawio-depths --schemes S0,S2-1,S2-5 --patterns randread,randwrite --sizes 4k --depths 1,4,16,64,128 "${time[@]}"
fi
experiment stream --sizes "$stream_sizes" "${time[@]}"
# Beside other people's programs, and the papers' applications. Programs that are not installed are left out with a message.
experiment peers "${peers[@]}"
experiment btio "${btio[@]}"
if [ "$(id -u)" -eq 0 ] && command -v dbench >/dev/null 2>&1; then
  experiment dbench "${dbench[@]}"
else
  say "dbench: left out; it takes root"
fi
# The kernel's IPsec, where it has it. It says so where not.
if scripts/ipsec.sh --check; then
  LAB="$LAB" RESULTS="$RESULTS" scripts/ipsec.sh --sizes 4k,64k "${time[@]}" || failed+=(ipsec)
fi

if [ "${1:-}" = "--tiny" ]; then
  "$LAB" report "$RESULTS" --html "$OUT/report.html" --plots "$OUT/plots"
else
  mkdir -p docs/bench
  cp "$RESULTS" docs/bench/results.jsonl
  "$LAB" report "$RESULTS" --html docs/bench/report.html --plots docs/bench --markdown docs/bench/experiments.md
fi
[ "${#failed[@]}" -eq 0 ] || { say "with failed cells: ${failed[*]}"; exit 1; }

#!/usr/bin/env bash
# Compares two builds of strongroom-lab: interleaved runs of `rawio`, and for each cell the median of the ratios, new over old.
#
#   scripts/bench-pairs.sh OLD NEW [PAIRS] [RAWIO OPTION...]
#
# OLD and NEW are programs, PAIRS how many pairs are run [default: 10]. Which of the two runs first alternates. The options replace the grid:
# S0 and S2-5, sequential reads and writes of 4 and 64 KiB at depth 16, a volume in memory. Throughput counts as shown (MiB/s, the minimum and
# maximum of the ratios in parentheses); CPU time is that of each end for an I/O. Prints a table in Markdown. Needs python3, and root for the pinning.
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
old=$(realpath "$1") new=$(realpath "$2") pairs=${3:-10}
shift $(($# < 3 ? $# : 3))
grid=("$@")
[ $# -gt 0 ] || grid=(--schemes S0,S2-5 --patterns seqread,seqwrite --sizes 4k,64k --depths 16 --process hardware --medium memory --seconds 0.7)
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT

run() { # old|new PAIR
  local program=$old
  [ "$1" = old ] || program=$new
  "$program" rawio "${grid[@]}" --runs 1 --quiet --json "$room/$1.$2" > "$room/log" 2>&1 || { cat "$room/log" >&2; exit 1; }
}
for pair in $(seq "$pairs"); do
  order=(old new)
  [ $((pair % 2)) = 1 ] || order=(new old)
  for which in "${order[@]}"; do run "$which" "$pair"; done
  echo "pair $pair of $pairs" >&2
done

python3 - "$room" "$pairs" << 'PYTHON'
import json, statistics, sys
room, pairs = sys.argv[1], int(sys.argv[2])
KEY = ("scheme", "pattern", "size", "depth", "initiators")
cells = {}
for which in ("old", "new"):
    for pair in range(1, pairs + 1):
        for line in open(f"{room}/{which}.{pair}"):
            cell = json.loads(line)
            if "mib_s" in cell:
                cells.setdefault(tuple(cell[k] for k in KEY), {}).setdefault(which, []).append(cell)

def ratios(cell, figure):
    pairs = zip(cell["old"], cell["new"])
    return [new[figure] / old[figure] for old, new in pairs if old.get(figure) and new.get(figure)]

def median(values):
    return f"{statistics.median(values):.3f}" if values else "-"

print("| scheme | pattern | bytes | depth | old MiB/s | new MiB/s | new / old | target CPU, new / old | initiator CPU, new / old |")
print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
for key, cell in sorted(cells.items()):
    if len(cell.get("old", [])) != pairs or len(cell.get("new", [])) != pairs:
        sys.exit(f"bench-pairs: a cell was not measured in each run: {key}")
    speed = {which: statistics.median(run["mib_s"] for run in cell[which]) for which in cell}
    of = ratios(cell, "mib_s")
    scheme, pattern, size, depth, _ = key
    print(f"| {scheme} | {pattern} | {size} | {depth} | {speed['old']:.0f} | {speed['new']:.0f} | {median(of)} ({min(of):.2f}–{max(of):.2f}) "
          f"| {median(ratios(cell, 'target_cpu_ms_per_kio'))} | {median(ratios(cell, 'initiator_cpu_ms_per_kio'))} |")
PYTHON

#!/usr/bin/env bash
# Where the time of a target and of its initiator goes, at 4 KiB and 64 KiB, for each scheme: samples by perf, and system
# calls per I/O. Puts a table between the `profile` marks of docs/bench/profile.md: `make bench-profile`.
#
#   LAB            the laboratory                   [target/release/strongroom-lab]
#   SCHEMES        what to look at                  [S0,S2-5]
#   DOCUMENT       where the table goes             [docs/bench/profile.md]
#   LOOK_SECONDS   how long each of two looks lasts [2]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly LAB="${LAB:-target/release/strongroom-lab}"
readonly SCHEMES="${SCHEMES:-S0,S2-5}"
readonly DOCUMENT="${DOCUMENT:-docs/bench/profile.md}"
readonly LOOK="${LOOK_SECONDS:-2}"
readonly BEGIN='<!-- profile: begin (made by `make bench-profile`; do not edit) -->'
readonly END='<!-- profile: end -->'

say() { echo "bench-profile: $*" >&2; }
fail() { say "$*"; exit 1; }
[ -x "$LAB" ] || fail "there is no $LAB; run: make lab"
command -v perf >/dev/null || fail "perf is missing; on Debian: apt-get install linux-perf"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The process below $1 whose command line has $2.
below() {
  local pid
  for pid in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
    if { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -q -- "$2"; then echo "$pid"; return; fi
  done
}

# Looks at both processes at once: $1 is the target, $2 its initiator. Samples first, then system calls.
look() {
  local end pid
  local -A pids=([target]=$1 [initiator]=$2)
  local -a looking=()
  for end in target initiator; do
    perf record -q -F 997 -p "${pids[$end]}" -o "$work/$end.data" -- sleep "$LOOK" >/dev/null 2>&1 &
    looking+=($!)
  done
  for pid in "${looking[@]}"; do wait "$pid" || true; done
  looking=()
  for end in target initiator; do
    perf stat -x ' ' -e 'syscalls:sys_enter_*' -p "${pids[$end]}" -o "$work/$end.stat" -- sleep "$LOOK" >/dev/null 2>&1 &
    looking+=($!)
  done
  for pid in "${looking[@]}"; do wait "$pid" || true; done
}

# The symbols that took most samples, as "12% [k] name, 8% [.] name, …"; $1 is which end.
hottest() {
  perf report -i "$work/$1.data" --no-children --sort symbol --stdio 2>/dev/null |
    awk '$1 ~ /%$/ { share = $1; sub(/%/, "", share); $1 = ""; name = $0; gsub(/^ +|( +-)* *$/, "", name)
           gsub(/<|>|\|/, "", name); if (length(name) > 48) name = substr(name, 1, 45) "..."
           printf "%s%.0f%% `%s`", (n++ ? ", " : ""), share, name; if (n == 8) exit } END { if (!n) printf "no samples" }' || true
}

# System calls a second, "calls_per_second name" a line; the four most frequent. $1 is which end.
syscalls() {
  awk -v seconds="$LOOK" '$1 ~ /^[0-9]+$/ && $1 > 0 { for (i = 2; i <= NF; i++) if (sub(/syscalls:sys_enter_/, "", $i)) print $1 / seconds, $i }' \
    "$work/$1.stat" 2>/dev/null | sort -rn | head -4 || true
}

table="$work/table.md"
{
  echo "| scheme, I/O | end | kIO/s | CPU ms/kIO | system calls per I/O | most samples |"
  echo "|---|---|---:|---:|---|---|"
} >"$table"

IFS=, read -ra schemes <<<"$SCHEMES"
for scheme in "${schemes[@]}"; do
  for pattern in randread randwrite; do
    for size in 4k 64k; do
      say "$scheme $size $pattern"
      # Two looks, and time for perf to begin and to write down what it saw.
      seconds=$((LOOK * 2 + 8))
      "$LAB" rawio --schemes "$scheme" --patterns "$pattern" --sizes "$size" --depths 16 --seconds "$seconds" \
        --warm-up 0.5 --runs 1 --volume-size 64MiB --quiet --json "$work/cell.jsonl" 2>"$work/errors" &
      bench=$!
      # Fill and warm-up come first: looks begin once the initiator has been busy for a moment.
      target="" initiator=""
      for _ in $(seq 300); do
        target=$(below "$bench" ' serve ') initiator=$(below "$bench" ' initiator ')
        [ -n "$target" ] && [ -n "$initiator" ] && break
        sleep 0.05
      done
      [ -n "$target" ] && [ -n "$initiator" ] || { cat "$work/errors" >&2; fail "the benchmark did not start"; }
      sleep 3
      look "$target" "$initiator"
      wait "$bench" || { cat "$work/errors" >&2; fail "the benchmark failed"; }
      for end in target initiator; do
        syscalls "$end" >"$work/calls"
        awk -v end="$end" -v what="$scheme, $size $pattern" -v hot="$(hottest "$end")" -v calls="$work/calls" '
          function field(name) { return match($0, "\"" name "\":[0-9.e+-]+") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) : 0 }
          /"bench"/ {
            iops = field("iops"); cpu = field(end "_cpu_ms_per_kio"); list = ""
            while ((getline line < calls) > 0) {
              split(line, part, " "); if (iops > 0 && part[1] / iops >= 0.005) list = list (list ? ", " : "") sprintf("%.2f %s", part[1] / iops, part[2])
            }
            printf "| %s | %s | %.1f | %.2f | %s | %s |\n", what, end, iops / 1000, cpu, list ? list : "< 0.01", hot
          }' "$work/cell.jsonl" >>"$table"
      done
    done
  done
done

section="$work/section.md"
{
  echo "$BEGIN"
  echo "## Where the time goes"
  echo
  echo "Command: \`make bench-profile\` (\`scripts/bench-profile.sh\`). Queue depth 16, one initiator, memory beneath the whole store;"
  echo "both ends pinned. Samples by \`perf record\` over $LOOK s, symbols of the kernel (\`[k]\`) and of the program (\`[.]\`); system"
  echo "calls counted by the kernel's tracepoints in a look of their own. Looking costs a little: kIO/s here are not results."
  echo
  cat "$table"
  echo "$END"
} >"$section"
touch "$DOCUMENT"
if grep -qF "$BEGIN" "$DOCUMENT"; then
  awk -v begin="$BEGIN" -v end="$END" -v section="$section" '
    $0 == begin { while ((getline line < section) > 0) print line; skip = 1 }
    !skip { print }
    $0 == end { skip = 0 }' "$DOCUMENT" >"$work/document.md"
  cat "$work/document.md" >"$DOCUMENT"
else
  { echo; cat "$section"; } >>"$DOCUMENT"
fi
cat "$table"

#!/usr/bin/env bash
# How long the iterations of a target's event loop take (CPU time of its thread) while it does what could take long: a sequential fill,
# snapshots between random writes, sending, deleting snapshots under writes, opening a long log after a kill, receiving.
#
#   scripts/iterations.sh [PROGRAM] [MIB]
#
# PROGRAM is the strongroom to measure [default: target/release/strongroom], MIB the size of its volume [default: 2048]; it writes about five
# times that to the temporary directory. One worker serves everything. Needs root, FUSE and fio; runs in namespaces of its own. Prints a line
# for each phase, as a row of a table in Markdown. CPU time of a thread contains what the machine takes away without saying so (a hypervisor,
# cold caches), so another process measures itself beside it: pieces of fixed work, a millisecond each when nothing disturbs them. It fails if
# iterations take more than 10 ms and, for each second of CPU time, more often than those pieces.
set -euo pipefail

program=$(realpath "${1:-$(dirname "$0")/../target/release/strongroom}")
mib=${2:-2048}
script=$(realpath "$0")
if [ -z "${ITERATIONS_INSIDE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "iterations: needs root" >&2; exit 2; }
  command -v fio > /dev/null || { echo "iterations: needs fio: scripts/deps.sh --bench" >&2; exit 2; }
  room=$(mktemp -d)
  status=0
  ITERATIONS_INSIDE=$room unshare --mount --propagation slave --net --pid --fork --mount-proc bash "$script" "$program" "$mib" || status=$?
  rm -rf "$room"
  exit $status
fi

room=$ITERATIONS_INSIDE
trap 'status=$?; [ $status = 0 ] || tail -n 20 "$room"/*.log >&2; exit $status' EXIT
ip link set lo up
mkdir -p "$room/home" "$room/run"
export HOME="$room/home"
unset XDG_CONFIG_HOME XDG_RUNTIME_DIR STRONGROOM_KEY_FILE STRONGROOM_KEY_SERVER STRONGROOM_IDENTITY
strongroom() { "$program" "$@"; }
quietly() { "$@" > "$room/last.log" 2>&1 < /dev/null; }
until_true() { local i; for i in $(seq 600); do if eval "$1"; then return; fi; sleep 0.1; done; echo "iterations: never true: $1" >&2; exit 1; }

strongroom identity new --out "$room/host" > "$room/host.pub" 2> /dev/null
strongroom identity new --out "$room/alice" > "$room/alice.pub" 2> /dev/null
quietly strongroom key new --out "$room/vault.key"
line() { grep -h ^strongroom-ed25519 "$room/$1.pub"; }
echo "127.0.0.1 $(line host)" > "$room/known"
root=$room/root
serve() {
  : > "$room/target.log"
  "$program" serve --root "$root" --listen 127.0.0.1:3260 --identity "$room/host" --workers 1 --peer "name=alice; key=$(line alice); volumes=*" \
    > "$room/target.log" 2>&1 < /dev/null &
  target=$!
  until_true "grep -q 'serving on' '$room/target.log'"
}
# Seconds of CPU time of the target so far; its one worker does nearly everything in it.
seconds() { awk -v ticks="$(getconf CLK_TCK)" '{ print ($14 + $15) / ticks }' "/proc/$target/stat"; }
access=(--key-file "$room/vault.key" --identity "$room/alice" --known "$room/known")
volume=strongroom://127.0.0.1/vault
random_writes() { # MIB
  quietly fio --name=random --filename="$room/run/vault" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k --size="${mib}M" --io_size="$1M" \
    --randseed=$RANDOM --norandommap
}
# Buckets as "count up_to_us" lines; the last bound is 0 for none.
buckets() { strongroom status --root "$root" --json | python3 -c '
import json, sys
for bucket in json.load(sys.stdin)["counters"]["iterations"]["buckets"]:
    print(bucket["count"], bucket["up_to_us"] or 0)'; }
control() { python3 -u -c '
import time
def work():
    total = 0
    for number in range(pieces): total += number
pieces = 1000
while True:
    began = time.thread_time(); work(); took = time.thread_time() - began
    if took >= 0.001: break
    pieces *= 2
pieces = int(pieces * 0.001 / took)
counts, began = [0] * 4, time.thread_time()
while True:
    before = time.thread_time(); work(); took_ms = (time.thread_time() - before) * 1000
    counts[0] += 1
    for at, limit_ms in enumerate([1.5, 3, 10], 1): counts[at] += took_ms > limit_ms
    if counts[0] % 50 == 0:
        with open("'"$room"'/control.new", "w") as file: print(*counts, time.thread_time() - began, file=file)
        __import__("os").replace("'"$room"'/control.new", "'"$room"'/control")
    time.sleep(0.004)'; }
before=
mark() { before=$(buckets); }
long=0
row() { # NAME
  local after; after=$(buckets)
  paste -d ' ' <(printf '%s\n' "${before:-$(sed 's/^[0-9]*/0/' <<< "$after")}") <(printf '%s\n' "$after") | awk -v name="$1" '
    { count = $3 - $1; all += count; if ($4 == 0 || $4 > 1000) over1 += count; if ($4 == 0 || $4 > 3000) over3 += count; if ($4 == 0 || $4 > 10000) over10 += count }
    END { printf "| %s | %d | %d | %d | %d |\n", name, all, over1, over3, over10 }' | tee "$room/row"
  long=$((long + $(awk -F'|' '{ print $6 }' "$room/row")))
  before=$after
}

serve
quietly strongroom volume create vault --root "$root" --size "${mib}MiB" --peer alice
quietly strongroom volume format "$volume" "${access[@]}" --yes
attach() { quietly strongroom attach "$volume" "${access[@]}" --to "$room/run" "$@"; }
attach
control & control=$!
mark
echo "One worker, a sealed volume of $mib MiB, $("$program" --version)"
echo
echo "| phase | iterations | over 1 ms | over 3 ms | over 10 ms |"
echo "|---|---|---|---|---|"
quietly fio --name=fill --filename="$room/run/vault" --direct=1 --ioengine=libaio --iodepth=4 --rw=write --bs=1M --size="${mib}M" --end_fsync=1
row "sequential fill"
for snapshot in $(seq 20); do
  random_writes $((mib / 64))
  quietly strongroom volume snapshot create "vault@s$snapshot" --root "$root"
done
row "20 snapshots between random writes"
strongroom volume send vault@s10 --root "$root" > "$room/s10.stream" 2> "$room/last.log"
strongroom volume send vault@s20 --from s10 --root "$root" > "$room/s20.stream" 2> "$room/last.log"
row "sending a snapshot, and what changed since another"
random_writes $((mib / 2)) & writer=$!
for snapshot in $(seq 19); do quietly strongroom volume snapshot delete "vault@s$snapshot" --root "$root"; done
wait $writer
row "deleting 19 snapshots under random writes"
random_writes $((mib / 2))
row "random writes, compaction"
before_kill=$(seconds)
kill -9 "$target"; wait "$target" 2> /dev/null || true
until_true "! ss -Hltn 'sport = :3260' | grep -q ."
before=
serve
random_writes 16
row "opening the log after a kill, and what waited"
quietly strongroom detach "$room/run"
mark
strongroom volume receive copy --root "$root" < "$room/s10.stream" > "$room/last.log" 2>&1
row "receiving a volume"
strongroom volume receive copy --root "$root" < "$room/s20.stream" > "$room/last.log" 2>&1
row "receiving what changed"
taken=$(awk "BEGIN { print $before_kill + $(seconds) }")
kill "$target"; wait "$target"
kill "$control"
awk -v long="$long" -v taken="$taken" '{
  printf "| control: pieces of 1 ms of work (over 1.5 ms, 3 ms, 10 ms) | %d | %d | %d | %d |\n", $1, $2, $3, $4
  printf "\nOver 10 ms for each second of CPU time: target %.3f (%.0f s), control %.3f (%.0f s)\n", long / taken, taken, $4 / $5, $5
  exit long / taken > $4 / $5
}' "$room/control"

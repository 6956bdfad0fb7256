#!/usr/bin/env bash
# What laziness buys, on processors with AES instructions and without, and with the lazy-crypto paper's own ciphers: `make bench-schemes`.
# About 20 minutes on an idle machine with two processors; as root, else
# what limits the target by a quota is left out. Writes docs/bench/schemes.jsonl and docs/bench/schemes.md.
#
#   scripts/bench-schemes.sh          all of it
#   scripts/bench-schemes.sh --tiny   everything once, as short as it goes: is it alive? Writes nothing into docs/
#
# LAB         the lab binary        [target/release/strongroom-lab]
# PROGRAMS    "--program old=PATH --program new=PATH": builds of the lab that are compared, which takes as many times as long
# BENCH_DIR   where results go      [target/bench]
set -euo pipefail
. "$(dirname "$0")/bench-results.sh" schemes.jsonl

time=(--seconds 0.7 --warm-up 0.2 --runs 3)
few=(--seconds 0.7 --warm-up 0.2 --runs 2)
saturated=(--seconds 0.5 --warm-up 0.1 --runs 3)
# Where the answer is near what is asked, more runs tell more.
near=(--seconds 0.5 --warm-up 0.1 --runs 7)
# What users see needs five runs.
client=(--seconds 0.5 --warm-up 0.1 --runs 5)
first_second=(--seconds 1 --runs 5)
fills=24
case "${1:-}" in
  --tiny)
    time=(--seconds 0.2 --warm-up 0.05 --runs 1)
    few=("${time[@]}")
    saturated=("${time[@]}")
    near=("${time[@]}")
    client=("${time[@]}")
    first_second=(--seconds 0.2 --runs 1)
    fills=1
    ;;
  "") ;;
  *) unknown_option "$1" ;;
esac

read -r -a programs <<< "${PROGRAMS:-}"
measure() {
  local experiment=$1
  shift
  # A stream has no target of some release.
  [ "$experiment" = stream ] || set -- "${programs[@]}" "$@"
  record "$experiment $*" "$experiment" "$@"
}

# Nothing can be masked where there is nothing: the rows with AES instructions are the software rows then.
can_mask=
if "$LAB" rawio --name schemes-software --schemes S2-5 --process software --sizes 64k --patterns seqread --volume-size 64MiB \
  --quiet --seconds 0.05 --warm-up 0 --runs 1 >/dev/null; then
  can_mask=1
fi

# Nor limited without root and the cpu controller of cgroups.
can_limit=
if "$LAB" rawio --name client-quota --schemes S0 --target-quota 40 --sizes 64k --patterns seqread --volume-size 8MiB \
  --quiet --seconds 0.05 --warm-up 0 --runs 1 >/dev/null; then
  can_limit=1
else
  say "the rows with a limited target are left out"
fi

rm -f "$RESULTS"
# What a target can do, where its processor is the bottleneck: initiators have sealed beforehand, and the target has been at work for a while.
capacity() {
  local name=$1
  shift
  measure rawio --name "$name" --sealed-beforehand --fills "$fills" --volume-size 64MiB "$@"
}
large=(--sizes 64k --depths 64)
# With one connection, ends that are both slow wait for each other.
several=(--sizes 64k --depths 16 --initiators 4)
sequential=(--patterns seqread,seqwrite)
capacity capacity-hardware --schemes S0,S2-1,S2-5 "${large[@]}" "${near[@]}"
capacity capacity-4k --schemes S0,S2-5 --sizes 4k --depths 128 --initiators 2 "${near[@]}"
if [ -n "$can_mask" ]; then
  capacity capacity-software --schemes S0,S2-1,S2-5 --process software "${several[@]}" "${sequential[@]}" "${saturated[@]}"
fi
capacity capacity-paper --schemes S0,S1-1,S1-2,S2-1,S2-5 --suites paper "${several[@]}" "${sequential[@]}" "${saturated[@]}"
capacity capacity-paper-8 --schemes S0,S2-1,S2-5 --suites paper --sizes 64k --depths 16 --initiators 8 "${sequential[@]}" "${saturated[@]}"

# What users get, with initiators that seal and open: first with a processor for each end, then with the target as the bottleneck, because it may use
# only a share of its processor, or has no AES instructions where initiators have.
seen_by_clients() {
  local name=$1
  shift
  measure rawio --name "$name" --fills "$fills" --volume-size 64MiB --depths 16 "${client[@]}" "$@"
}
seen_by_clients client --schemes S0,S2-1,S2-5 --sizes 4k,64k --initiators 1,4,8
# The first second of both ends, of new ones for each measurement.
measure rawio --name client-first-second --just-started --schemes S0,S2-5 --patterns seqwrite,randwrite --sizes 64k --depths 16 "${first_second[@]}"
if [ -n "$can_limit" ]; then
  seen_by_clients client-quota --schemes S0,S2-1,S2-5 --sizes 4k,64k --target-quota 40
  seen_by_clients client-quota-paper --schemes S0,S1-1,S1-2,S2-1,S2-5 --suites paper --sizes 64k "${sequential[@]}" --initiators 1,8 --target-quota 10
fi
if [ -n "$can_mask" ]; then
  seen_by_clients client-target-software --schemes S2-1,S2-5 --target-process software --sizes 4k,64k "${sequential[@]}"
fi

# Every scheme with initiators that seal and open. Everything in one place keeps all targets in memory at once: small volumes.
small=(--volume-size 64MiB --depths 16)
measure rawio --name schemes-hardware --schemes all --sizes 4k,64k "${small[@]}" "${few[@]}"
if [ -n "$can_mask" ]; then
  measure rawio --name schemes-software --schemes all --process software --sizes 64k "${sequential[@]}" "${small[@]}" "${few[@]}"
  measure rawio --name schemes-chacha --schemes S2-1,S2-5 --suites aes-256-gcm,chacha20-poly1305 --process software --sizes 64k \
    "${sequential[@]}" "${small[@]}" "${few[@]}"
fi
measure rawio --name schemes-paper --schemes all --suites paper --sizes 64k "${sequential[@]}" "${small[@]}" "${few[@]}"
measure rawio --name schemes-paper-8 --schemes S2-1,S2-5 --suites paper --sizes 64k "${sequential[@]}" --initiators 8 "${small[@]}" \
  "${few[@]}"
# What a key for every block costs: drawing, carrying, wrapping, keeping and unwrapping it; and what sealing more at once saves of that.
measure rawio --name schemes-keys --schemes S2-5 --custody keyfile,target --sizes 4k,64k "${small[@]}" "${few[@]}"
measure rawio --name schemes-key-runs --schemes S2-5 --custody keyfile,target --blocks-per-key 1,16 --sizes 64k "${small[@]}" "${few[@]}"
measure rawio --name schemes-block-sets --schemes S2-5 --custody target --seal-bytes 512,4k,64k --sizes 4k --patterns randread,randwrite \
  "${small[@]}" "${time[@]}"
# The same on files, each random read's record read with its block or found in memory; S0 has no records.
measure rawio --name schemes-key-store --schemes S0,S2-5 --custody keyfile,target --record-cache 0,32MiB --sizes 4k --medium directory \
  --work-dir "$OUT" --volume-size 64MiB --depths 16 "${few[@]}"
measure stream --protections tcp,S1-1,S1-2,S2-1,S2-3,S2-5 --suites aes-256-gcm,paper --sizes 4k,64k "${few[@]}"

if [ -z "${1:-}" ]; then
  mkdir -p docs/bench
  cp "$RESULTS" docs/bench/schemes.jsonl
  "$LAB" report "$RESULTS" --laziness docs/bench/schemes.md
else
  "$LAB" report "$RESULTS" --laziness "$OUT/schemes.md"
fi
[ "${#failed[@]}" -eq 0 ] || { printf 'bench-schemes: failed: %s\n' "${failed[@]}" >&2; exit 1; }

#!/usr/bin/env bash
# What laziness buys, on processors with AES instructions and without, and with the lazy-crypto paper's own ciphers: `make bench-schemes`.
# About 8 minutes on an idle machine with two processors. Writes docs/bench/schemes.jsonl and its section of docs/performance.md.
#
#   scripts/bench-schemes.sh          all of it
#   scripts/bench-schemes.sh --tiny   everything once, as short as it goes: is it alive? Writes nothing into docs/
#
# STRONGROOM  the binary            [target/release/strongroom]
# BENCH_DIR   where results go      [target/bench]
set -euo pipefail
. "$(dirname "$0")/bench-results.sh" schemes.jsonl

time=(--seconds 0.7 --warm-up 0.2 --runs 3)
case "${1:-}" in
  --tiny) time=(--seconds 0.2 --warm-up 0.05 --runs 1) ;;
  "") ;;
  *) unknown_option "$1" ;;
esac

measure() { record "$*" "$@" "${time[@]}"; }

rm -f "$RESULTS"
# Everything in one place keeps all targets in memory at once: small volumes.
small=(--volume-size 64MiB --depths 16)
measure rawio --name schemes-hardware --schemes all --sizes 4k,64k "${small[@]}"
# Nothing can be masked where there is nothing: the rows above are the software rows then.
if "$STRONGROOM" bench rawio --name schemes-software --schemes S2-5 --process software --sizes 64k --patterns seqread "${small[@]}" --quiet \
  --seconds 0.05 --warm-up 0 --runs 1 >/dev/null; then
  measure rawio --name schemes-software --schemes all --process software --sizes 64k --patterns seqread,seqwrite "${small[@]}"
  measure rawio --name schemes-chacha --schemes S2-1,S2-5 --suites aes-256-gcm,chacha20-poly1305 --process software --sizes 64k \
    --patterns seqread,seqwrite "${small[@]}"
fi
measure rawio --name schemes-paper --schemes all --suites paper --sizes 64k --patterns seqread,seqwrite "${small[@]}"
measure rawio --name schemes-paper-8 --schemes S2-1,S2-5 --suites paper --sizes 64k --patterns seqread,seqwrite --initiators 8 "${small[@]}"
# What a key for every block costs: drawing, carrying, wrapping, keeping and unwrapping it; and what sealing more at once saves of that.
measure rawio --name schemes-keys --schemes S2-5 --custody keyfile,target --sizes 4k,64k "${small[@]}"
measure rawio --name schemes-key-runs --schemes S2-5 --custody keyfile,target --blocks-per-key 1,16 --sizes 64k "${small[@]}"
measure rawio --name schemes-block-sets --schemes S2-5 --custody target --seal-bytes 512,4k,64k --sizes 4k "${small[@]}"
# The same on files, each random read's record read with its block or found in memory; S0 has no records.
measure rawio --name schemes-key-store --schemes S0,S2-5 --custody keyfile,target --record-cache 0,32MiB --sizes 4k --medium directory \
  --work-dir "$OUT" --volume-size 64MiB --depths 16
measure stream --protections tcp,S1-1,S1-2,S2-1,S2-3,S2-5 --suites aes-256-gcm,paper --sizes 4k,64k

if [ -z "${1:-}" ]; then
  mkdir -p docs/bench
  cp "$RESULTS" docs/bench/schemes.jsonl
  "$STRONGROOM" bench report "$RESULTS" --laziness docs/performance.md
else
  "$STRONGROOM" bench report "$RESULTS" --laziness "$OUT/schemes.md"
fi
[ "${#failed[@]}" -eq 0 ] || { printf 'bench-schemes: failed: %s\n' "${failed[@]}" >&2; exit 1; }

#!/usr/bin/env bash
# Fuzzes every decoder for a while, guided by coverage, on the stable compiler (libFuzzer; no sanitizer).
#
#   scripts/fuzz.sh [SECONDS] [TARGET…]
#
# FUZZ_RUNS=N tries N inputs of each decoder instead, always the same ones: from the committed corpus and one seed, for a
# check that has to say the same of the same sources wherever it runs.
#
# Starts from fuzz/corpus/TARGET, which is committed and which `make test` replays; what is new goes to fuzz/found/TARGET,
# from where the next run goes on (not with FUZZ_RUNS, which keeps nothing).
# A finding is written to fuzz/findings/TARGET-crash-… and the script ends with an error that says how to see it again:
# fix it, and commit its bytes to the corpus.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

seconds=${1:-30}
shift || true

# The coverage that libFuzzer reads; what cargo-fuzz passes, too.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing"
# An explicit target keeps the flags away from build scripts and procedural macros.
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
profile=release
if [ -n "${FUZZ_RUNS:-}" ]; then profile=brief; fi
cargo build --profile "$profile" --quiet --target "$host"
binary="$CARGO_TARGET_DIR/$host/$profile/fuzz"

if [ $# -eq 0 ]; then
  mapfile -t targets < <(STRONGROOM_FUZZ_TARGET=list "$binary")
else
  targets=("$@")
fi

found=found
if [ -n "${FUZZ_RUNS:-}" ]; then
  # The time that an input takes must not decide, and neither what an earlier run has found.
  limits=(-runs="$FUZZ_RUNS" -seed=1 -timeout=60)
  bound="$FUZZ_RUNS inputs"
  found=$(mktemp -d)
  trap 'rm -rf "$found"' EXIT
else
  limits=(-max_total_time="$seconds" -timeout=10)
  bound="$seconds s"
fi

mkdir -p findings
for target in "${targets[@]}"; do
  mkdir -p "corpus/$target" "$found/$target"
  echo "fuzz: $target: $bound"
  log=$(mktemp)
  # libFuzzer tries inputs of one size in the order of the directory, which differs between file systems: named one by one, they are sorted.
  inputs=$(find "corpus/$target" -type f | LC_ALL=C sort | paste -s -d ,)
  if ! STRONGROOM_FUZZ_TARGET="$target" "$binary" "$found/$target" -seed_inputs="$inputs" "${limits[@]}" -max_len=8192 \
    -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="findings/$target-" >"$log" 2>&1; then
    grep -a -m 1 -A 2 'panicked at' "$log" >&2 || true
    tail -n 40 "$log"
    rm -f "$log"
    echo "fuzz: $target has a finding; see it again with:" >&2
    echo "  STRONGROOM_FUZZ_TARGET=$target $binary fuzz/findings/$target-…" >&2
    exit 1
  fi
  grep -E 'number_of_executed_units|new_units_added' "$log" | sed "s/^/fuzz: $target: /"
  rm -f "$log"
done

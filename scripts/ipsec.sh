#!/usr/bin/env bash
# Measures plain iSCSI inside the kernel's IPsec: the paper's S1-1 (AH) and S2-1 (ESP), beside the same path without it.
#
#   scripts/ipsec.sh [--ah | --esp | --none | --check] [OPTIONS OF `strongroom-lab rawio`]
#
# Makes two network namespaces with a cable, sets transport-mode associations between them with `ip xfrm`, serves a plain
# volume in one and runs the grid of `strongroom-lab rawio` from the other. Without a mode it runs all three, one after the
# other: they share a machine, not a moment, so compare them with care, and repeat. Needs root, iproute2, and a kernel with
# CONFIG_INET_ESP or CONFIG_INET_AH; --check only says whether this one can, by its exit status.
#
#   scripts/ipsec.sh --sizes 4k,64k --patterns seqread,randwrite --runs 3
#   LAB=target/release/strongroom-lab RESULTS=ipsec.jsonl scripts/ipsec.sh --esp
#
# Between two hosts: run the `ip xfrm` lines of `associate` on both, with their addresses and the keys exchanged, then
# `strongroom-lab rawio --url iscsi://HOST/... --destroy-data`.
set -euo pipefail

PATH="$PATH:/usr/sbin:/sbin"
LAB="${LAB:-target/release/strongroom-lab}"
RESULTS="${RESULTS:-}"
readonly TARGET_ADDRESS=10.215.0.2 INITIATOR_ADDRESS=10.215.0.1 PORT=3260
# What the target's end and the initiators' are kept on, as `strongroom-lab rawio` does it: the last processor, and the first.
readonly TARGET_CPU=$(($(nproc) - 1)) INITIATOR_CPU=0
readonly TARGET_NS="sripsec$$t" INITIATOR_NS="sripsec$$i"

say() { echo "ipsec: $*" >&2; }
fail() { say "$*"; exit 1; }

work=""
target_pid=""
clean() {
  if [ -n "$target_pid" ]; then kill "$target_pid" 2>/dev/null && wait "$target_pid" 2>/dev/null; fi
  ip netns delete "$TARGET_NS" 2>/dev/null || true
  ip netns delete "$INITIATOR_NS" 2>/dev/null || true
  [ -z "$work" ] || rm -rf "$work"
}
trap clean EXIT

key() { echo "0x$(od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n')"; }

# A cable between two namespaces.
connect() {
  ip netns add "$TARGET_NS"
  ip netns add "$INITIATOR_NS"
  ip -n "$TARGET_NS" link add "$TARGET_NS" type veth peer name "$INITIATOR_NS" netns "$INITIATOR_NS"
  ip -n "$TARGET_NS" address add "$TARGET_ADDRESS/24" dev "$TARGET_NS"
  ip -n "$INITIATOR_NS" address add "$INITIATOR_ADDRESS/24" dev "$INITIATOR_NS"
  for namespace in "$TARGET_NS" "$INITIATOR_NS"; do
    ip -n "$namespace" link set lo up
    ip -n "$namespace" link set "$namespace" mtu 9000 up
  done
}

# Associations and policies of one direction, in both namespaces: SOURCE DESTINATION SPI.
associate() {
  local from=$1 to=$2 spi=$3 state policy direction namespace
  case "$mode" in
    # AES-GCM with 128-bit tags, as our own channel and sealing; 32 bytes of key and 4 of salt.
    esp) state=(proto esp spi "$spi" mode transport aead "rfc4106(gcm(aes))" "$(key 36)" 128) ;;
    ah) state=(proto ah spi "$spi" mode transport auth-trunc "hmac(sha256)" "$(key 32)" 128) ;;
  esac
  policy=(tmpl src "$from" dst "$to" proto "$mode" mode transport)
  for namespace in "$TARGET_NS" "$INITIATOR_NS"; do
    ip -n "$namespace" xfrm state add src "$from" dst "$to" "${state[@]}" || return 1
    direction=in
    if ip -n "$namespace" address show to "$from" | grep -q inet; then direction=out; fi
    ip -n "$namespace" xfrm policy add src "$from" dst "$to" dir "$direction" "${policy[@]}" || return 1
  done
}

protect() {
  [ "$mode" != none ] || return 0
  associate "$INITIATOR_ADDRESS" "$TARGET_ADDRESS" 0x1001 && associate "$TARGET_ADDRESS" "$INITIATOR_ADDRESS" 0x1002
}

# How many packets the association has carried: without any, the measurement was of something else.
packets() {
  ip -n "$TARGET_NS" -s xfrm state | sed -n 's/.*[^0-9]\([0-9][0-9]*\)(packets).*/\1/p' | sort -n | tail -1
}

serve() {
  "$LAB" product volume create bench --plain --size 256MiB --medium memory --initiator '*' --root "$work/root" >/dev/null
  : >"$work/target.log"
  taskset -c "$TARGET_CPU" ip netns exec "$TARGET_NS" "$LAB" product --log warn serve --root "$work/root" --workers 1 \
    --listen "$TARGET_ADDRESS:$PORT" --plain 'initiators=*; volumes=*' >"$work/target.log" 2>&1 &
  target_pid=$!
  for _ in $(seq 100); do
    ! grep -q '^serving on' "$work/target.log" || return 0
    kill -0 "$target_pid" 2>/dev/null || break
    sleep 0.1
  done
  cat "$work/target.log" >&2
  fail "the target did not start"
}

cpu_ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat"; }

measure() {
  local url="iscsi://$TARGET_ADDRESS:$PORT/iqn.2026-11.org.strongroom:bench/0" before after out=()
  [ -z "$RESULTS" ] || out=(--json "$RESULTS" --append)
  before=$(cpu_ticks "$target_pid")
  taskset -c "$INITIATOR_CPU" ip netns exec "$INITIATOR_NS" "$LAB" rawio --url "$url" --destroy-data \
    --name "ipsec-$mode" "${out[@]}" "$@"
  after=$(cpu_ticks "$target_pid")
  say "$mode: the target's process used $((after - before)) ticks of CPU; IPsec's own work is the kernel's, beside it"
  [ "$mode" = none ] || [ "$(packets)" -gt 100 ] || fail "$mode: its associations carried nothing; the results say nothing of it"
}

modes=()
check=""
case "${1:-}" in
  --ah | --esp | --none) modes=("${1#--}"); shift ;;
  --check) check=yes; modes=(ah esp); shift ;;
  *) modes=(none ah esp) ;;
esac

[ "$(id -u)" -eq 0 ] || fail "network namespaces and ip xfrm need root"
command -v ip >/dev/null 2>&1 || fail "there is no ip; install it with scripts/deps.sh --bench (Debian: iproute2)"
[ -n "$check" ] || [ -x "$LAB" ] || fail "there is no $LAB; run make lab, or set LAB"

work=$(mktemp -d)
able=""
for mode in "${modes[@]}"; do
  connect
  if ! protect 2>"$work/refusal"; then
    option=$([ "$mode" = esp ] && echo CONFIG_INET_ESP || echo CONFIG_INET_AH)
    say "$mode: this kernel ($(uname -r)) has none: it needs $option (and its cipher) built in or as a module." \
      "It said: $(tail -1 "$work/refusal")"
  elif [ -n "$check" ]; then
    able=yes
    say "$mode: this kernel can"
  else
    able=yes
    say "$mode: measuring"
    serve
    measure "$@"
    kill "$target_pid"
    wait "$target_pid" 2>/dev/null || true
    target_pid=""
    rm -rf "$work/root"
  fi
  ip netns delete "$TARGET_NS"
  ip netns delete "$INITIATOR_NS"
done
[ -n "$able" ] || exit 3

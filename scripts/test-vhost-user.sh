#!/usr/bin/env bash
# A virtual machine whose root file system is a sealed volume, over vhost-user: QEMU without KVM (TCG), Debian's kernel, the disk a
# vhost-user-blk device. The guest's part is scripts/kernel/vhost-user-init: it copies itself onto the volume, makes that its root, and writes
# and verifies files while the back end is killed with SIGKILL, with requests in flight, and started again, three times. Run by `make test-vhost-user`.
#
#   scripts/test-vhost-user.sh [PATH-OF-STRONGROOM]
set -euo pipefail

readonly STRONGROOM=${1:-target/release/strongroom}
readonly WORK=$PWD/target/vhost-user-test
readonly HERE=$(cd "$(dirname "$0")" && pwd)
# Everything in the guest under emulation, on a busy machine.
readonly PATIENCE_S=${KERNEL_TEST_PATIENCE_S:-1500}
readonly GUEST_PACKAGES="e2fsprogs libext2fs2 libcom-err2 libss2 libc6 libblkid1 libuuid1 libgcc-s1"
readonly MODULES="virtio_pci virtio_blk crc32c_generic ext4"
readonly KILLS=3
# shellcheck source=scripts/kernel/guest.sh
. "$HERE/kernel/guest.sh"
[ -x "$STRONGROOM" ] || fail "$STRONGROOM is not there: run make build"

# A target, a volume that only alice can open, and her identity and key.
prepare_target() {
  rm -rf "$WORK/volumes" "$WORK"/*.identity "$WORK"/*.key
  mkdir -p "$WORK/volumes"
  "$STRONGROOM" identity new --out "$WORK/storage.identity" >/dev/null
  "$STRONGROOM" identity new --out "$WORK/alice.identity" >/dev/null
  "$STRONGROOM" key new --out "$WORK/volume.key" >/dev/null
  cat >"$WORK/strongroom.toml" <<EOF
root = "$WORK/volumes"
node_key = "$WORK/storage.identity"
listen = ["127.0.0.1:$PORT"]
[limits]
idle_close_s = 1
[[peer]]
name = "alice"
key = "$("$STRONGROOM" identity show "$WORK/alice.identity")"
initiators = ["iqn.2026-11.test:alice"]
volumes = ["*"]
EOF
  "$STRONGROOM" volume create vault --size 512MiB --root "$WORK/volumes" >/dev/null
  URL="strongroom://127.0.0.1:$PORT/vault"
  ALICE=(--identity "$WORK/alice.identity" --initiator-name iqn.2026-11.test:alice --key-file "$WORK/volume.key"
    --target-key "$("$STRONGROOM" identity show "$WORK/storage.identity")" --connect-timeout 60s)
}

serve() {
  "$STRONGROOM" serve --config "$WORK/strongroom.toml" >>"$WORK/serve.log" 2>&1 &
  TARGET=$!
  until (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; do
    kill -0 "$TARGET" 2>/dev/null || fail "the target did not start: $(tail -n 5 "$WORK/serve.log")"
    sleep 0.2
  done
}

serve_disk() {
  "$STRONGROOM" vhost-user serve "$URL" "${ALICE[@]}" --socket "$WORK/vault.sock" --lease 2s --no-memory-lock \
    >>"$WORK/vhost-user.log" 2>&1 &
  BACK_END=$!
  local until=$((SECONDS + 60))
  until grep -q "volume served over vhost-user" <(tail -n +"$((LOG_LINES + 1))" "$WORK/vhost-user.log"); do
    kill -0 "$BACK_END" 2>/dev/null && [ "$SECONDS" -lt "$until" ] || fail "the back end did not start: $(tail -n 5 "$WORK/vhost-user.log")"
    sleep 0.2
  done
  LOG_LINES=$(wc -l <"$WORK/vhost-user.log")
}

cleanup() { kill -9 "${GUEST:-}" "${BACK_END:-}" "${TARGET:-}" 2>/dev/null || true; }
trap cleanup EXIT

PORT=$((20000 + RANDOM % 20000))
LOG_LINES=0
mkdir -p "$WORK"
rm -f "$WORK/console.log" "$WORK/serve.log"
: >"$WORK/vhost-user.log"
download
build_root "$HERE/kernel/vhost-user-init"
pack_root
prepare_target
serve
"$STRONGROOM" volume format "$URL" "${ALICE[@]}" --yes >/dev/null
serve_disk
start_guest "" -object memory-backend-memfd,id=memory,size=1536M,share=on -machine memory-backend=memory \
  -chardev "socket,id=vault,path=$WORK/vault.sock,reconnect=1" -device vhost-user-blk-pci,chardev=vault,num-queues=2
wait_for ROOT-ON-THE-VOLUME
for kill in $(seq "$KILLS"); do
  wait_for "WORKING-$kill"
  # With a target that does not answer, requests are in flight for certain.
  kill -STOP "$TARGET"
  sleep 3
  kill -9 "$BACK_END"; wait "$BACK_END" 2>/dev/null || true
  kill -CONT "$TARGET"
  sleep 1
  serve_disk
  wait_for "VERIFIED-$kill"
done
wait_for EXT4-CLEAN
wait "$GUEST" || true
kill "$BACK_END"
wait "$BACK_END" || fail "the back end lost writes: $(tail -n 5 "$WORK/vhost-user.log")"
again=$(grep -c "executing requests again" "$WORK/vhost-user.log" || true)
[ "$again" -ge "$KILLS" ] || fail "requests were in flight at $again of $KILLS kills only"
say "passed: requests were executed again after $again kills, in $SECONDS s"

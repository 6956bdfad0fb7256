#!/usr/bin/env bash
# The kernel's NBD client as a front end (`strongroom attach --nbd`): Debian's kernel in a virtual machine that needs no KVM (QEMU's TCG), our
# target on the host. ext4 on /dev/nbdN; the serving process killed again and again under writes, whose data is compared; the volume enlarged
# while it is mounted; detaching, refused while anything uses the device; devices that were left, gone on with and cleaned up; fsck clean.
# The guest's part is scripts/kernel/nbd-init. Run by `make test-kernel-nbd`.
#
#   scripts/test-nbd.sh [PATH-OF-STRONGROOM]
set -euo pipefail

readonly STRONGROOM=${1:-target/release/strongroom}
readonly WORK=$PWD/target/nbd-test
readonly HERE=$(cd "$(dirname "$0")" && pwd)
# Everything in the guest under emulation, on a busy machine.
readonly PATIENCE_S=${KERNEL_TEST_PATIENCE_S:-1500}
# What the guest's programs link against, besides themselves.
readonly GUEST_PACKAGES="libc6 libgcc-s1 libblkid1 libuuid1 e2fsprogs libext2fs2 libcom-err2 libss2"
readonly MODULES="virtio_pci virtio_net crc32c_generic ext4 nbd"
# shellcheck source=scripts/kernel/guest.sh
. "$HERE/kernel/guest.sh"
[ -x "$STRONGROOM" ] || fail "$STRONGROOM is not there: run make build"

target_config() {
  rm -rf "$WORK/volumes"
  mkdir -p "$WORK/volumes"
  rm -f "$WORK"/*.identity "$WORK"/volume.key
  "$STRONGROOM" identity new --out "$WORK/target.identity" >/dev/null
  "$STRONGROOM" identity new --out "$WORK/alice.identity" >/dev/null
  "$STRONGROOM" key new --out "$WORK/volume.key" >/dev/null
  cat >"$WORK/strongroom.toml" <<EOF
root = "$WORK/volumes"
listen = ["127.0.0.1:$PORT"]
node_key = "$WORK/target.identity"
[limits]
login_timeout_s = 60
[[peer]]
name = "alice"
key = "$("$STRONGROOM" identity show "$WORK/alice.identity")"
initiators = ["iqn.2026-11.test:guest"]
volumes = ["*"]
EOF
  "$STRONGROOM" volume create vault --size 192MiB --root "$WORK/volumes" >/dev/null
}

guest_files() {
  mkdir -p "$WORK/root/opt" "$WORK/root/etc/strongroom"
  # The symbols stay outside: the guest has everything in memory.
  objcopy --strip-all "$STRONGROOM" "$WORK/root/opt/strongroom"
  chmod 755 "$WORK/root/opt/strongroom"
  install -m 600 "$WORK/alice.identity" "$WORK/volume.key" "$WORK/root/etc/strongroom/"
  "$STRONGROOM" identity show "$WORK/target.identity" >"$WORK/root/etc/strongroom/target-key"
}

cleanup() { kill -9 "${GUEST:-}" "${TARGET:-}" 2>/dev/null || true; }
trap cleanup EXIT

PORT=$((20000 + RANDOM % 20000))
mkdir -p "$WORK"
rm -f "$WORK/console.log" "$WORK/serve.log"
download
build_root "$HERE/kernel/nbd-init"
target_config
guest_files
pack_root
"$STRONGROOM" serve --config "$WORK/strongroom.toml" >>"$WORK/serve.log" 2>&1 &
TARGET=$!
start_guest "url=strongroom://10.0.2.2:$PORT/vault" -nic user,model=virtio-net-pci
wait_for REFUSED-WITHOUT-MODULE
wait_for NBD-MOUNTED
wait_for SURVIVED-KILLS
wait_for REFUSED-WHILE-IN-USE
wait_for ENLARGE-ME
"$STRONGROOM" volume resize vault --size 256MiB --root "$WORK/volumes" >/dev/null
wait_for ENLARGED
wait_for DETACHED
wait_for DEVICE-CLEAN
wait_for WENT-ON
wait_for CLEANED-UP
say "passed: $(grep -c . "$WORK/console.log") lines on the console, in $SECONDS s"

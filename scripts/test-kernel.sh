#!/usr/bin/env bash
# A real Linux initiator against our target: Debian's kernel and open-iscsi, in a virtual machine that needs no KVM (QEMU's TCG).
# Discovers, logs in with mutual CHAP and digests, makes ext4 and XFS, works on them, unmounts, checks them clean; goes on after the
# target was killed with a file system mounted; logs out. The guest's part is scripts/kernel/init. Run by `make test-kernel`.
#
#   scripts/test-kernel.sh [PATH-OF-STRONGROOM]
set -euo pipefail

readonly STRONGROOM=${1:-target/release/strongroom}
readonly WORK=$PWD/target/kernel-test
readonly HERE=$(cd "$(dirname "$0")" && pwd)
# Everything in the guest under emulation, on a busy machine.
readonly PATIENCE_S=${KERNEL_TEST_PATIENCE_S:-1500}
# What the guest's programs link against, besides themselves.
readonly GUEST_PACKAGES="open-iscsi libisns0 libopeniscsiusr libmount1 libkmod2 libsystemd0 libssl3 libcrypt1
 libc6 libblkid1 libselinux1 libpcre2-8-0 libuuid1 liblzma5 libzstd1 libcap2 libgcrypt20 libgpg-error0 liblz4-1
 e2fsprogs libext2fs2 libcom-err2 libss2 xfsprogs libinih1 liburcu8 libdevmapper1.02.1 libudev1 libedit2 libbsd0 libmd0 libtinfo6 libgcc-s1"
readonly MODULES="virtio_pci virtio_net iscsi_tcp sd_mod crc32c_generic ext4 xfs"
# shellcheck source=scripts/kernel/guest.sh
. "$HERE/kernel/guest.sh"
[ -x "$STRONGROOM" ] || fail "$STRONGROOM is not there: run make build"

target_config() {
  rm -rf "$WORK/volumes"
  mkdir -p "$WORK/volumes"
  (umask 077; printf 'initiator-secret-1\n' >"$WORK/initiator.secret"; printf 'target-secret-22\n' >"$WORK/target.secret")
  cat >"$WORK/strongroom.toml" <<EOF
root = "$WORK/volumes"
listen = ["127.0.0.1:$PORT"]
advertise = ["10.0.2.2:$PORT"]
discovery_chap = ["kernel"]
[[chap]]
user = "kernel"
secret_file = "$WORK/initiator.secret"
target_user = "storage"
target_secret_file = "$WORK/target.secret"
[[plain]]
initiators = ["iqn.2026-11.test:kernel"]
volumes = ["*"]
chap = ["kernel"]
EOF
  "$STRONGROOM" volume create disk --size 1GiB --plain --root "$WORK/volumes" >/dev/null
}

serve() {
  "$STRONGROOM" serve --config "$WORK/strongroom.toml" >>"$WORK/serve.log" 2>&1 &
  TARGET=$!
}

cleanup() { kill -9 "${GUEST:-}" "${TARGET:-}" 2>/dev/null || true; }
trap cleanup EXIT

PORT=$((20000 + RANDOM % 20000))
rm -f "$WORK/console.log" "$WORK/serve.log"
download
build_root "$HERE/kernel/init"
mkdir -p "$WORK"/root/{etc/iscsi,var/lib/iscsi}
# iscsid asks whether who talks to it is root; its name:
echo "InitiatorName=iqn.2026-11.test:kernel" >"$WORK/root/etc/iscsi/initiatorname.iscsi"
pack_root
target_config
serve
start_guest "portal=10.0.2.2:$PORT" -nic user,model=virtio-net-pci
wait_for KERNEL-LOGGED-IN
wait_for EXT4-CLEAN
wait_for XFS-CLEAN
wait_for KILL-ME
kill -9 "$TARGET"; wait "$TARGET" 2>/dev/null || true
sleep 5
serve
wait_for SURVIVED
wait_for LOGGED-OUT
say "passed: $(grep -c . "$WORK/console.log") lines on the console, in $SECONDS s"

#!/usr/bin/env bash
# A real Linux initiator against our target: Debian's kernel and open-iscsi, in a virtual machine that needs no KVM (QEMU's TCG).
# Discovers, logs in with mutual CHAP and digests, makes ext4 and XFS, works on them, unmounts, checks them clean; goes on after the
# target was killed with a file system mounted; logs out. The guest's part is scripts/kernel/init. Run by `make test-kernel`.
#
#   scripts/test-kernel.sh [PATH-OF-STRONGROOM]
#
# Debian packages are downloaded into target/kernel-test and unpacked there; nothing is installed by this script.
set -euo pipefail

readonly STRONGROOM=${1:-target/release/strongroom}
readonly WORK=$PWD/target/kernel-test
readonly HERE=$(cd "$(dirname "$0")" && pwd)
# Everything in the guest under emulation, on a busy machine.
readonly PATIENCE_S=${KERNEL_TEST_PATIENCE_S:-1500}

# What the guest's programs link against, besides themselves.
readonly GUEST_PACKAGES="busybox-static open-iscsi libisns0 libopeniscsiusr libmount1 libkmod2 libsystemd0 libssl3 libcrypt1
 libc6 libblkid1 libselinux1 libpcre2-8-0 libuuid1 liblzma5 libzstd1 libcap2 libgcrypt20 libgpg-error0 liblz4-1
 e2fsprogs libext2fs2 libcom-err2 libss2 xfsprogs libinih1 liburcu8 libdevmapper1.02.1 libudev1 libedit2 libbsd0 libmd0 libtinfo6 libgcc-s1"
readonly MODULES="virtio_pci virtio_net iscsi_tcp sd_mod crc32c_generic ext4 xfs"

say() { echo "test-kernel: $*" >&2; }
fail() { say "$*"; [ -f "$WORK/console.log" ] && tail -n 40 "$WORK/console.log" >&2; exit 1; }

for tool in qemu-system-x86_64 cpio apt-get dpkg-deb depmod; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install qemu-system-x86 cpio kmod"
done
[ -x "$STRONGROOM" ] || fail "$STRONGROOM is not there: run make build"

download() {
  mkdir -p "$WORK/debs"
  (
    cd "$WORK/debs"
    kernel=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
    missing=()
    for package in $kernel $GUEST_PACKAGES; do
      compgen -G "${package}_*.deb" >/dev/null || missing+=("$package")
    done
    [ "${#missing[@]}" -eq 0 ] || apt-get download -qq "${missing[@]}" 2>download.log || { cat download.log >&2; exit 1; }
  )
}

# The guest's root file system: all of it in memory.
build_root() {
  rm -rf "$WORK/root" "$WORK/kernel"
  mkdir -p "$WORK/root" "$WORK/kernel"
  local deb
  for deb in "$WORK"/debs/*.deb; do
    case "$deb" in
      */linux-image-*) dpkg-deb -x "$deb" "$WORK/kernel" ;;
      *) dpkg-deb -x "$deb" "$WORK/merge.tmp" ;;
    esac
  done
  # Debian's packages still ship /bin, /sbin and /lib beside /usr; the guest has them merged.
  local root=$WORK/root dir
  mkdir -p "$root/usr"
  for dir in bin sbin lib lib64; do
    mkdir -p "$root/usr/$dir"
    ln -s "usr/$dir" "$root/$dir"
    [ -d "$WORK/merge.tmp/$dir" ] && cp -a "$WORK/merge.tmp/$dir/." "$root/usr/$dir/" && rm -rf "${WORK:?}/merge.tmp/$dir"
  done
  cp -a "$WORK/merge.tmp/." "$root/"
  rm -rf "$WORK/merge.tmp" "$root/usr/share" "$root/usr/include"
  local version
  version=$(basename "$WORK"/kernel/lib/modules/*)
  mkdir -p "$root/usr/lib/modules"
  depmod -b "$WORK/kernel" "$version"
  # Each module with what it depends on.
  local module file
  for module in $MODULES; do
    while read -r kind file; do
      [ "$kind" = insmod ] || continue
      install -D "$file" "$root/usr${file#"$WORK/kernel"}"
    done < <(modprobe -d "$WORK/kernel" -S "$version" --show-depends "$module" 2>/dev/null || true)
  done
  cp "$WORK/kernel/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} "$root/usr/lib/modules/$version/"
  depmod -b "$root" "$version"
  mkdir -p "$root"/{proc,sys,dev,tmp,run,mnt,etc/iscsi,root,var/lib/iscsi}
  install -m 755 "$HERE/kernel/init" "$root/init"
  # iscsid asks whether who talks to it is root.
  echo "root:x:0:0:root:/root:/bin/sh" >"$root/etc/passwd"
  echo "root:x:0:" >"$root/etc/group"
  echo "InitiatorName=iqn.2026-11.test:kernel" >"$root/etc/iscsi/initiatorname.iscsi"
  (cd "$root" && find . -print0 | cpio --null --create --format=newc --quiet | gzip -1 >"$WORK/initramfs.gz")
}

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

# Waits until the guest says a word on its console.
wait_for() {
  local until=$((SECONDS + PATIENCE_S))
  until grep -q "$1" "$WORK/console.log"; do
    kill -0 "$GUEST" 2>/dev/null || fail "the guest ended before it said $1"
    grep -q "TEST-FAILED" "$WORK/console.log" && fail "the guest failed"
    [ "$SECONDS" -lt "$until" ] || fail "the guest did not say $1 in $PATIENCE_S s"
    sleep 1
  done
  say "$1"
}

cleanup() { kill -9 "${GUEST:-}" "${TARGET:-}" 2>/dev/null || true; }
trap cleanup EXIT

PATH="$PATH:/usr/sbin:/sbin"
PORT=$((20000 + RANDOM % 20000))
rm -f "$WORK/console.log" "$WORK/serve.log"
download || fail "the guest's packages could not be downloaded"
build_root
target_config
serve
: >"$WORK/console.log"
qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -display none -no-reboot \
  -kernel "$(ls "$WORK"/kernel/boot/vmlinuz-*)" -initrd "$WORK/initramfs.gz" \
  -append "console=ttyS0 quiet panic=-1 portal=10.0.2.2:$PORT" \
  -nic user,model=virtio-net-pci -chardev "file,id=console,path=$WORK/console.log,append=on" -serial chardev:console -monitor none &
GUEST=$!
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

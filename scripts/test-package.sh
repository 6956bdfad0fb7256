#!/usr/bin/env bash
# The Debian package in a machine of its own: Debian with systemd as init, in QEMU without KVM. Follows docs/installing.md literally: installs the package,
# configures a target, an attachment and a key server, reboots, upgrades while a volume is attached and written to, removes, purges. The guest's
# part is scripts/package/guest.sh. Run by `make test-package`, as root.
#
#   scripts/test-package.sh [PACKAGE]
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"
HERE=$(cd "$(dirname "$0")" && pwd)
WORK=$PWD/target/package-test
PACKAGE=${1:-$(ls -t target/debian/strongroom_*.deb 2>/dev/null | head -n 1)}
# Everything in the guest under emulation, on a busy machine.
PATIENCE_S=${PACKAGE_TEST_PATIENCE_S:-2400}
# What the guest has besides Debian's minimum.
GUEST_PACKAGES=systemd-sysv,udev,fuse3,e2fsprogs,kmod,procps,linux-image-amd64

say() { echo "test-package: $*" >&2; }
fail() { say "$*"; [ ! -f "$WORK/console.log" ] || tail -n 60 "$WORK/console.log" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "needs root, for the guest's file system"
[ -f "$PACKAGE" ] || fail "there is no package; run: make deb"
for tool in mmdebstrap qemu-system-x86_64 mke2fs dpkg-deb; do
  command -v "$tool" >/dev/null || fail "$tool is missing: run scripts/deps.sh --vm"
done
mkdir -p "$WORK"
GUEST=
trap '[ -z "$GUEST" ] || kill -9 "$GUEST" 2>/dev/null || true' EXIT

# Debian, once, from where this machine's packages come from.
base() {
  [ ! -f "$WORK/base.tar" ] || return 0
  say "installing Debian for the guest (a few minutes, once)"
  # shellcheck source=/dev/null
  local suite sources=(/etc/apt/sources.list.d/debian.sources)
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  [ -f "${sources[0]}" ] || sources=(/etc/apt/sources.list)
  local options=()
  for file in /etc/apt/apt.conf.d/*; do
    ! grep -q '^Acquire' "$file" || options+=("--aptopt=$file")
  done
  mmdebstrap --quiet --mode=root --format=tar --variant=minbase --include="$GUEST_PACKAGES" "${options[@]}" "$suite" "$WORK/base.tar.part" "${sources[@]}" \
    > "$WORK/debian.log" 2>&1 || { tail -n 20 "$WORK/debian.log" >&2; fail "the guest could not be made"; }
  mv "$WORK/base.tar.part" "$WORK/base.tar"
}

# The same package with a higher version: what an upgrade installs.
newer() {
  rm -rf "$WORK/newer"
  dpkg-deb -R "$PACKAGE" "$WORK/newer"
  sed -i 's/^Version: .*/&+upgrade/' "$WORK/newer/DEBIAN/control"
  dpkg-deb -b "$WORK/newer" "$1" > /dev/null
}

disk() {
  local root=$WORK/root
  rm -rf "$root" "$WORK/disk"
  mkdir -p "$root"
  tar -C "$root" -xf "$WORK/base.tar"
  cp -L "$root/vmlinuz" "$WORK/kernel"
  cp -L "$root/initrd.img" "$WORK/initrd"
  echo "/dev/vda / ext4 defaults 0 1" > "$root/etc/fstab"
  echo storage > "$root/etc/hostname"
  echo "127.0.0.1 localhost storage" > "$root/etc/hosts"
  # Where the document has it. The newer one takes its place there.
  mkdir -p "$root/root/target/debian" "$root/root/newer"
  cp "$PACKAGE" "$root/root/target/debian/"
  newer "$root/root/newer/strongroom_newer.deb"
  cp "$HERE/../docs/installing.md" "$root/root/"
  install -m 755 "$CSI_TEST" "$root/root/csi-test"
  install -m 755 "$HERE/package/guest.sh" "$root/root/guest.sh"
  cat > "$root/etc/systemd/system/package-test.service" <<'UNIT'
[Unit]
Description=The test of the package
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/root/guest.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
UNIT
  mkdir -p "$root/etc/systemd/system/graphical.target.wants"
  ln -s ../package-test.service "$root/etc/systemd/system/graphical.target.wants/package-test.service"
  ln -sf /usr/lib/systemd/system/graphical.target "$root/etc/systemd/system/default.target"
  # Nobody logs in at the console that the test writes to.
  ln -s /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
  mke2fs -q -t ext4 -d "$root" "$WORK/disk" 3G
  rm -rf "$root"
}

# Our own test of the CSI driver, as a program.
CSI_TEST=$(cd "$HERE/.." && cargo test --locked --quiet --package strongroom-csi --test it --no-run --message-format=json |
  sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
[ -x "$CSI_TEST" ] || fail "the test of the CSI driver was not built"
base
disk
: > "$WORK/console.log"
qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 1536 -display none -kernel "$WORK/kernel" -initrd "$WORK/initrd" \
  -append "root=/dev/vda rw console=ttyS0 quiet panic=-1 systemd.show_status=0" -drive "file=$WORK/disk,format=raw,if=virtio,cache=unsafe" \
  -nic none -chardev "file,id=console,path=$WORK/console.log,append=on" -serial chardev:console -monitor none &
GUEST=$!
shown=0
until grep -q -e PACKAGE-TEST-PASSED -e PACKAGE-TEST-FAILED "$WORK/console.log"; do
  kill -0 "$GUEST" 2>/dev/null || fail "the guest ended too early"
  [ "$SECONDS" -lt "$PATIENCE_S" ] || fail "the guest did not finish in $PATIENCE_S s"
  lines=$(grep -a '^step: ' "$WORK/console.log" | tr -d '\r' || true)
  count=$(grep -c . <<< "$lines" || true)
  [ "$count" -le "$shown" ] || tail -n "$((count - shown))" <<< "$lines" >&2
  shown=$count
  sleep 1
done
! grep -q PACKAGE-TEST-FAILED "$WORK/console.log" || fail "the guest failed"
say "passed in $SECONDS s"

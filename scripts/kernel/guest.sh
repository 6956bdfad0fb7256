# A virtual machine that needs no KVM (QEMU's TCG), with Debian's kernel and everything in memory: what the tests that need
# another kernel have in common. Sourced by scripts/test-kernel.sh, scripts/test-nbd.sh, scripts/test-vhost-user.sh and scripts/test-ipsec.sh, which set:
#
#   WORK            a directory of their own; Debian packages are unpacked there and nothing is installed
#   GUEST_PACKAGES  the Debian packages whose files the guest has, besides busybox
#   MODULES         the kernel's modules it can load
#   PATIENCE_S      how long the guest may take to say a word
#
# Debian packages are downloaded once, into target/kernel-test/debs.

PATH="$PATH:/usr/sbin:/sbin"
readonly DEBS=$PWD/target/kernel-test/debs

say() { echo "$(basename "$0" .sh): $*" >&2; }
fail() { say "$*"; [ -f "$WORK/console.log" ] && tail -n 40 "$WORK/console.log" >&2; exit 1; }

for tool in qemu-system-x86_64 cpio apt-get dpkg-deb depmod; do
  command -v "$tool" >/dev/null || fail "$tool is missing: run scripts/deps.sh --kernel"
done

download() {
  mkdir -p "$DEBS" "$WORK"
  KERNEL_PACKAGE=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
  [ -n "$KERNEL_PACKAGE" ] || fail "apt knows no linux-image-amd64: run apt-get update"
  (
    cd "$DEBS"
    missing=()
    for package in "$KERNEL_PACKAGE" busybox-static $GUEST_PACKAGES; do
      compgen -G "${package}_*.deb" >/dev/null || missing+=("$package")
    done
    [ "${#missing[@]}" -eq 0 ] || apt-get download -qq "${missing[@]}" 2>download.log || { cat download.log >&2; exit 1; }
  ) || fail "the guest's packages could not be downloaded"
}

# The guest's root file system; $1 is its first program. What the caller puts into $WORK/root/ afterwards goes with it: pack_root.
build_root() {
  rm -rf "$WORK/root" "$WORK/kernel" "$WORK/merge"
  mkdir -p "$WORK/root" "$WORK/kernel"
  dpkg-deb -x "$(compgen -G "$DEBS/${KERNEL_PACKAGE}_*.deb" | tail -n 1)" "$WORK/kernel"
  local package
  for package in busybox-static $GUEST_PACKAGES; do
    dpkg-deb -x "$(compgen -G "$DEBS/${package}_*.deb" | tail -n 1)" "$WORK/merge"
  done
  # Debian's packages still ship /bin, /sbin and /lib beside /usr; the guest has them merged.
  local root=$WORK/root dir
  mkdir -p "$root/usr"
  for dir in bin sbin lib lib64; do
    mkdir -p "$root/usr/$dir"
    ln -s "usr/$dir" "$root/$dir"
    [ ! -d "$WORK/merge/$dir" ] || { cp -a "$WORK/merge/$dir/." "$root/usr/$dir/" && rm -rf "${WORK:?}/merge/$dir"; }
  done
  cp -a "$WORK/merge/." "$root/"
  rm -rf "$WORK/merge" "$root/usr/share" "$root/usr/include"
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
  mkdir -p "$root"/{proc,sys,dev,tmp,run,mnt,etc,root}
  install -m 755 "$1" "$root/init"
  echo "root:x:0:0:root:/root:/bin/sh" >"$root/etc/passwd"
  echo "root:x:0:" >"$root/etc/group"
}

pack_root() {
  (cd "$WORK/root" && find . -print0 | cpio --null --create --format=newc --quiet | gzip -1 >"$WORK/initramfs.gz")
}

# Starts the guest, with words for its kernel's command line and further options of QEMU; its process is $GUEST.
start_guest() {
  local words=$1
  shift
  : >"$WORK/console.log"
  qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 1536 -display none -no-reboot \
    -kernel "$(ls "$WORK"/kernel/boot/vmlinuz-*)" -initrd "$WORK/initramfs.gz" -append "console=ttyS0 quiet panic=-1 $words" \
    -chardev "file,id=console,path=$WORK/console.log,append=on" -serial chardev:console -monitor none "$@" &
  GUEST=$!
}

# Waits until the guest says a word on its console.
wait_for() {
  local until=$((SECONDS + PATIENCE_S))
  until grep -q "$1" "$WORK/console.log"; do
    ! grep -q "TEST-FAILED" "$WORK/console.log" || fail "the guest failed"
    if ! kill -0 "$GUEST" 2>/dev/null; then
      # What it said last may have come between the two looks.
      grep -q "$1" "$WORK/console.log" || fail "the guest ended before it said $1"
      break
    fi
    [ "$SECONDS" -lt "$until" ] || fail "the guest did not say $1 in $PATIENCE_S s"
    sleep 1
  done
  say "$1"
}

#!/usr/bin/env bash
# Installs what building, testing and the demo need, where it is missing. Safe to run again: with everything in place it
# only looks, and takes a moment.
#
#   scripts/deps.sh            Debian packages and Rust
#   scripts/deps.sh --checks   also cargo-deny, which `make check` uses
#   scripts/deps.sh --kernel   also what the virtual machines of `make test-kernel`, `make test-kernel-nbd` and `make test-vhost-user` need
#   scripts/deps.sh --package  also cargo-deb and lintian, which `make deb` uses
#   scripts/deps.sh --vm       also what the virtual machine of `make test-package` needs
#   scripts/deps.sh --browser  also the browser of `make test-console`, and what drives and checks it
#   scripts/deps.sh --csi      also what `make test-csi` mounts; Go, which installs csi-sanity, is to be there
#   scripts/deps.sh --bench    also the programs in front of tgt and istgt that `strongroom-lab peers` compares us with, perf, ethtool and bonnie++
#
# With root it installs directly, otherwise through sudo. Nothing outside the system's packages, ~/.rustup and ~/.cargo
# is touched.
set -euo pipefail

# The oldest compiler that Cargo.toml's rust-version allows.
readonly RUST_MIN="1.89"
readonly CARGO_DENY_VERSION="0.20.2"
readonly CARGO_DEB_VERSION="3.6.3"
# What Debian's packages ask before they start a service (invoke-rc.d(8)).
readonly POLICY=/usr/sbin/policy-rc.d

# What each is for: "package command-or-file". The second word is only the quick test for "already there".
readonly PACKAGES="
build-essential   cc
ca-certificates   /etc/ssl/certs/ca-certificates.crt
curl              curl
cmake             cmake
fuse3             fusermount3
e2fsprogs         mkfs.ext4
util-linux        losetup
mount             mount
libiscsi-bin      iscsi-test-cu
qemu-utils        qemu-img
qemu-block-extra  /usr/lib/*/qemu/block-iscsi.so
fio               fio
libnbd-bin        nbdcopy
nbdkit            nbdkit
python3-libnbd    /usr/lib/python3/dist-packages/nbd.py
openssl           openssl
tgt               tgtd
istgt             istgt
dbench            dbench
iproute2          ip
tshark            tshark
prometheus        promtool
"

# Who takes part in `strongroom-lab peers` and `strongroom-lab dbench`, each left out with a word where it is missing; and what `profile` and `ecl` need.
readonly BENCH_PACKAGES="
linux-perf        perf
stunnel4          stunnel
wireguard-go      wireguard-go
wireguard-tools   wg
ethtool           ethtool
bonnie++          bonnie++
"

# A virtual machine without KVM, and what its root file system is made with.
readonly KERNEL_PACKAGES="
qemu-system-x86   qemu-system-x86_64
cpio              cpio
kmod              depmod
"

# A browser, what drives it, and npm, which fetches what checks pages.
readonly BROWSER_PACKAGES="
chromium          chromium
chromium-driver   chromedriver
python3-selenium  /usr/lib/python3/dist-packages/selenium/__init__.py
python3-pil       /usr/lib/python3/dist-packages/PIL/__init__.py
npm               npm
"

# The other file system of the CSI driver.
readonly CSI_PACKAGES="
xfsprogs          mkfs.xfs
"

# What builds a Debian package, and checks it.
readonly PACKAGE_PACKAGES="
lintian           lintian
"

# A virtual machine with a Debian of its own.
readonly VM_PACKAGES="
qemu-system-x86   qemu-system-x86_64
mmdebstrap        mmdebstrap
"

say() { echo "deps: $*" >&2; }
fail() { say "$*"; exit 1; }

# Sbin holds losetup and mkfs, and is not in every user's PATH.
PATH="$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin"

present() {
  case "$1" in
    /*) compgen -G "$1" >/dev/null ;;
    *) command -v "$1" >/dev/null 2>&1 ;;
  esac
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"
  elif command -v sudo >/dev/null 2>&1; then sudo "$@"
  else fail "these packages are missing and neither root nor sudo is at hand; as root run: apt-get install ${missing[*]}"
  fi
}

wanted="$PACKAGES"
[ "${1:-}" != "--bench" ] || wanted="$PACKAGES$BENCH_PACKAGES"
[ "${1:-}" != "--browser" ] || wanted="$PACKAGES$BROWSER_PACKAGES"
[ "${1:-}" != "--csi" ] || wanted="$PACKAGES$CSI_PACKAGES"
[ "${1:-}" != "--package" ] || wanted="$PACKAGES$PACKAGE_PACKAGES"
[ "${1:-}" != "--vm" ] || wanted="$PACKAGES$VM_PACKAGES"
[ "${1:-}" != "--kernel" ] || wanted="$PACKAGES$KERNEL_PACKAGES"
missing=()
while read -r package test; do
  [ -n "$package" ] || continue
  present "$test" || missing+=("$package")
done <<<"$wanted"

if [ "${#missing[@]}" -gt 0 ]; then
  command -v apt-get >/dev/null 2>&1 ||
    fail "this script knows Debian's apt-get only; install by hand what gives: ${missing[*]}"
  say "installing Debian packages: ${missing[*]}"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  # Of some packages only the tools are needed: their services are not started meanwhile.
  if [ ! -e "$POLICY" ] && printf '#!/bin/sh\nexit 101\n' | as_root tee "$POLICY" >/dev/null; then
    as_root chmod 755 "$POLICY"
    trap 'rm -f "$log"; as_root rm -f "$POLICY"' EXIT
  fi
  install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}")
  if ! as_root "${install[@]}" >"$log" 2>&1; then
    # An image that was made long ago has no, or old, package lists.
    as_root apt-get update -qq >>"$log" 2>&1 || { cat "$log" >&2; fail "apt-get update failed; see above"; }
    as_root "${install[@]}" >>"$log" 2>&1 || { cat "$log" >&2; fail "apt-get install failed; see above"; }
  fi
  case " ${missing[*]} " in
    *" prometheus "*) ! command -v systemctl >/dev/null 2>&1 || as_root systemctl disable -q prometheus.service || true ;;
  esac
fi

if ! command -v cargo >/dev/null 2>&1; then
  say "installing Rust by rustup, into ~/.rustup and ~/.cargo"
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -q -y --profile minimal -c clippy -c rustfmt
fi

version=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '%s\n%s\n' "$RUST_MIN" "$version" | sort -V | head -n 1)" != "$RUST_MIN" ]; then
  fail "rustc $version is older than $RUST_MIN; run: rustup update stable"
fi

if [ "${1:-}" = "--checks" ] && ! command -v cargo-deny >/dev/null 2>&1; then
  say "building cargo-deny $CARGO_DENY_VERSION (a few minutes, once)"
  # Unoptimised: it runs for a second, and its release profile takes several times as long to build.
  cargo install --debug --quiet --locked "cargo-deny@$CARGO_DENY_VERSION"
fi

if [ "${1:-}" = "--package" ] && ! command -v cargo-deb >/dev/null 2>&1; then
  say "building cargo-deb $CARGO_DEB_VERSION (a few minutes, once)"
  cargo install --debug --quiet --locked "cargo-deb@$CARGO_DEB_VERSION"
fi

#!/usr/bin/env bash
# scripts/ipsec.sh where a kernel has IPsec: AH and ESP between two namespaces of a virtual machine with Debian's kernel (QEMU's
# TCG, so its figures say nothing: what is shown is that the associations are made, that every packet of the measurement went
# through them, and that its data arrived). The guest's part is scripts/kernel/ipsec-init. Run by `make test-ipsec`.
#
#   scripts/test-ipsec.sh [PATH-OF-STRONGROOM-LAB]
set -euo pipefail

readonly LAB=${1:-target/release/strongroom-lab}
readonly WORK=$PWD/target/ipsec-test
readonly HERE=$(cd "$(dirname "$0")" && pwd)
readonly PATIENCE_S=${IPSEC_TEST_PATIENCE_S:-900}
readonly GUEST_PACKAGES="bash libtinfo6 libc6 libgcc-s1 iproute2 libbpf1 libbsd0 libmd0 libcap2 libcap2-bin libdb5.3 libelf1 zlib1g libmnl0
 libselinux1 libpcre2-8-0 libxtables12 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libcom-err2 libkrb5support0 libkeyutils1
 libssl3 util-linux coreutils libacl1 libattr1 libgmp10 libzstd1 liblzma5 libudev1 libsmartcols1 libblkid1 libmount1 libuuid1"
readonly MODULES="esp4 ah4 xfrm_user veth seqiv gcm ghash_generic ctr aesni_intel ghash_clmulni_intel hmac sha256_generic sha256_ssse3 sha512_generic drbg authenc echainiv cbc"
# shellcheck source=scripts/kernel/guest.sh
. "$HERE/kernel/guest.sh"
[ -x "$LAB" ] || fail "$LAB is not there: run make lab"

cleanup() { kill -9 "${GUEST:-}" 2>/dev/null || true; }
trap cleanup EXIT

download
build_root "$HERE/kernel/ipsec-init"
mkdir -p "$WORK/root/opt"
install -m 755 "$LAB" "$WORK/root/opt/strongroom-lab"
install -m 755 "$HERE/ipsec.sh" "$WORK/root/opt/ipsec.sh"
pack_root
start_guest "modules=${MODULES// /,}" -nic none
for mode in none ah esp; do wait_for "IPSEC-MEASURED $mode"; done
wait_for IPSEC-DONE
say "passed in $SECONDS s"

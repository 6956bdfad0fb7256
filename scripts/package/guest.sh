#!/bin/bash
# The guest's part of scripts/test-package.sh: runs at each boot until it has passed or failed, and says so on the console.
set -eEuo pipefail
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
state=/var/lib/package-test
mkdir -p "$state"
step() { echo "step: $*"; }
failed() {
  trap - ERR
  echo "failed in line $1"
  systemctl --no-pager status strongroom strongroom-attach@vault || true
  journalctl --no-pager -b -n 60 || true
  echo PACKAGE-TEST-FAILED
  sync
  power_off
}
trap 'failed $LINENO' ERR
expect() { "$@" || { echo "expected: $*"; return 1; }; }
# In order, without D-Bus, which a minimal Debian does not have: systemd(1), SIGRTMIN+4 and SIGRTMIN+5.
power_off() { kill -s RTMIN+4 1; }
reboot() { kill -s RTMIN+5 1; }
until_true() { local i; for i in $(seq 300); do if "$@" > /dev/null 2>&1; then return 0; fi; sleep 1; done; echo "never true: $*"; return 1; }
pid_of() { systemctl show -P MainPID "$1"; }
public() { grep -h ^strongroom-ed25519 "$1.pub"; }

first_boot() {
  step "install the package"
  dpkg -i /root/strongroom.deb
  expect test "$(systemctl is-enabled strongroom || true)" = disabled
  for page in strongroom strongroom-serve strongroom-attach; do expect test -f "/usr/share/man/man1/$page.1.gz"; done
  expect bash -n /usr/share/bash-completion/completions/strongroom

  step "configure a target"
  install -d -m 0700 /etc/strongroom /etc/strongroom/attach
  strongroom identity new --out /etc/strongroom/identity > /root/host.pub
  strongroom identity new --out /etc/strongroom/alice > /root/alice.pub
  cat > /etc/strongroom/strongroom.toml << TOML
root = "/srv/strongroom"
listen = ["127.0.0.1:3260"]
node_key = "/etc/strongroom/identity"
[[peer]]
name = "alice"
key = "$(public /root/alice)"
volumes = ["*"]
TOML
  strongroom volume create vault --size 64MiB --peer alice
  systemctl enable --now strongroom
  expect systemctl is-active strongroom
  strongroom status | grep -F 127.0.0.1:3260
  strongroom volume list | grep vault

  step "attach at boot"
  echo "storage $(public /root/host)" > /etc/strongroom/known_targets
  strongroom key new --out /etc/strongroom/vault.key
  export STRONGROOM_KEY_FILE=/etc/strongroom/vault.key STRONGROOM_IDENTITY=/etc/strongroom/alice STRONGROOM_KNOWN_TARGETS=/etc/strongroom/known_targets
  strongroom volume format strongroom://storage/vault --yes
  strongroom attach strongroom://storage/vault --to /run/first --mount /mnt/vault --mkfs ext4
  strongroom detach /mnt/vault
  sed -e 's#/etc/strongroom/identity#/etc/strongroom/alice#' /usr/share/doc/strongroom/examples/attach.conf > /etc/strongroom/attach/vault.conf
  systemctl enable --now strongroom-attach@vault
  expect mountpoint -q /mnt/vault
  head -c 4M /dev/urandom > /mnt/vault/data
  sha256sum /mnt/vault/data > "$state/sum"
  touch "$state/rebooted"
  step "reboot"
  reboot
}

second_boot() {
  step "attached after the reboot"
  until_true mountpoint -q /mnt/vault
  sha256sum -c "$state/sum"
  # It was detached in order: no journal of ext4 had to be replayed.
  if dmesg | grep -E 'EXT4-fs \(loop.*recovery'; then echo "the file system was not unmounted"; return 1; fi

  step "upgrade while it is written to"
  local attached target
  attached=$(pid_of strongroom-attach@vault) target=$(pid_of strongroom)
  (for i in $(seq 1 200); do echo "$i" >> /mnt/vault/log; sync /mnt/vault/log; sleep 0.1; done; touch "$state/written") &
  dpkg -i /root/strongroom-newer.deb
  expect test "$(pid_of strongroom-attach@vault)" = "$attached"
  expect test "$(pid_of strongroom)" != "$target"
  until_true test -f "$state/written"
  expect test "$(wc -l < /mnt/vault/log)" = 200
  sha256sum -c "$state/sum"

  step "a target that is killed is started again"
  kill -9 "$(pid_of strongroom)"
  until_true systemctl is-active strongroom
  echo after >> /mnt/vault/log && sync /mnt/vault/log
  sha256sum -c "$state/sum"

  step "remove and purge"
  systemctl disable --now strongroom-attach@vault
  expect test ! -d /mnt/vault/lost+found
  dpkg -r strongroom
  expect test ! -e /usr/bin/strongroom
  if systemctl is-active strongroom; then return 1; fi
  dpkg -P strongroom
  # What was configured and stored is not the package's to delete.
  expect test -f /etc/strongroom/vault.key
  expect test -d /srv/strongroom/vault
  expect test ! -e /usr/lib/systemd/system/strongroom.service
  expect test ! -e /lib/systemd/system/strongroom.service
  echo PACKAGE-TEST-PASSED
  sync
  power_off
}

if [ -f "$state/rebooted" ]; then second_boot; else first_boot; fi

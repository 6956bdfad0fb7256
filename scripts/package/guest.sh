#!/bin/bash
# The guest's part of scripts/test-package.sh: runs at each boot until it has passed or failed, and says so on the console. What it installs,
# configures, upgrades and removes, it does by the commands of docs/installing.md as they stand there.
set -eEuo pipefail
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
cd /root
state=/var/lib/package-test
mkdir -p "$state"
step() { echo "step: $*"; }
failed() {
  trap - ERR
  echo "failed in line $1"
  systemctl --no-pager status strongroom strongroom-attach@vault strongroom-keyserver || true
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
has_restarted() { [ "$(systemctl show -P NRestarts "$1")" -gt 0 ]; }
pid_of() { systemctl show -P MainPID "$1"; }
# The commands in the code blocks of a section of the document.
section() { awk -v heading="## $1" '/^## / { within = ($0 == heading) } within && /^```/ { inside = !inside; next } within && inside' installing.md; }
# Runs them; standard input is what a person would paste, and what they say is kept.
follow() { # SECTION [INPUT]
  local lines line
  mapfile -t lines < <(section "$1")
  expect test "${#lines[@]}" -gt 0
  : > said
  for line in "${lines[@]}"; do
    echo "# $line"
    eval "$line" < "${2:-/dev/null}" > part
    cat part >> said
  done
  cat said
}
keys() { strongroom key "$@" --key-server 127.0.0.1 --key-server-key "$(strongroom identity show /etc/strongroom/keyserver.identity)" --identity /etc/strongroom/attach/identity; }

first_boot() {
  step "install the package"
  follow "The package"
  expect test "$(systemctl is-enabled strongroom || true)" = disabled
  for page in strongroom strongroom-serve strongroom-attach; do expect test -f "/usr/share/man/man1/$page.1.gz"; done
  expect bash -n /usr/share/bash-completion/completions/strongroom

  step "configure a target"
  follow "A target"
  expect systemctl is-active strongroom
  expect test "$(stat -c %a /etc/strongroom/strongroom.toml)" = 600
  strongroom volume list | grep vault
  grep ^strongroom-invitation1: said > invitation

  step "attach at boot"
  follow "An initiator" invitation
  expect mountpoint -q /mnt/vault

  step "a key server"
  follow "A key server"
  sed -i "s#^key = .*#key = \"$(strongroom identity show /etc/strongroom/attach/identity)\"#" /etc/strongroom/keyserver.toml
  systemctl reload strongroom-keyserver
  keys create other
  keys show other
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
  rm target/debian/*.deb
  mv newer/*.deb target/debian/
  follow "Upgrading"
  expect test "$(pid_of strongroom-attach@vault)" = "$attached"
  expect test "$(pid_of strongroom)" != "$target"
  until_true test -f "$state/written"
  expect test "$(wc -l < /mnt/vault/log)" = 200
  sha256sum -c "$state/sum"
  keys show other

  step "a target that is killed is started again"
  kill -9 "$(pid_of strongroom)"
  until_true systemctl is-active strongroom
  echo after >> /mnt/vault/log && sync /mnt/vault/log
  sha256sum -c "$state/sum"

  step "an attachment waits for its target"
  systemctl stop strongroom-attach@vault
  systemctl stop strongroom
  systemctl start --no-block strongroom-attach@vault
  until_true has_restarted strongroom-attach@vault
  if mountpoint -q /mnt/vault; then return 1; fi
  systemctl start strongroom
  until_true mountpoint -q /mnt/vault
  sha256sum -c "$state/sum"

  step "the CSI driver has systemd attach a volume, and is killed meanwhile"
  STRONGROOM_PROGRAM=/usr/bin/strongroom STRONGROOM_HOST_PROGRAM=/usr/bin/strongroom ./csi-test --exact --nocapture system::ext4_lives_through_all_of_it > csi.log 2>&1 ||
    { cat csi.log; return 1; }
  expect grep -q 'test result: ok. 1 passed' csi.log
  journalctl --no-pager | grep -E 'Started.*(strongroom-csi|csi-)' | tail -n 3 || true

  step "remove and purge"
  follow "Removing"
  expect test ! -d /mnt/vault/lost+found
  expect test ! -e /usr/bin/strongroom
  if systemctl is-active strongroom; then return 1; fi
  if systemctl is-active strongroom-keyserver; then return 1; fi
  apt-get --yes purge strongroom
  # What was configured and stored is not the package's to delete.
  expect test -f /etc/strongroom/attach/vault.key
  expect test -d /srv/strongroom/vault
  expect test ! -e /usr/lib/systemd/system/strongroom.service
  expect test ! -e /lib/systemd/system/strongroom.service
  echo PACKAGE-TEST-PASSED
  sync
  power_off
}

if [ -f "$state/rebooted" ]; then second_boot; else first_boot; fi

#!/usr/bin/env bash
# The documents' steps, as a new administrator would type them: prints each command, runs it, and checks what it says.
#
#   scripts/walkthrough.sh [--short] [PROGRAM]
#
# PROGRAM is the strongroom to try [default: target/release/strongroom]. Needs root, and changes nothing on this machine: it runs in mount and
# network namespaces of its own, with /etc, /srv, /run, /mnt, /var/lib and the home directory on a temporary directory, and with the names
# `storage`, `backup` and `keys` for addresses of the loopback interface. --short leaves out what takes longer than a few seconds.
set -euo pipefail

short=
if [ "${1:-}" = --short ]; then short=1; shift; fi
program=$(realpath "${1:-$(dirname "$0")/../target/release/strongroom}")
sources=$(realpath "$(dirname "$0")/..")

if [ -z "${WALKTHROUGH_INSIDE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "walkthrough: needs root" >&2; exit 2; }
  room=$(mktemp -d)
  status=0
  WALKTHROUGH_INSIDE=$room unshare --mount --propagation slave --net --pid --fork --mount-proc \
    bash "$sources/scripts/walkthrough.sh" ${short:+--short} "$program" || status=$?
  rmdir "$room"
  exit $status
fi

# --- A machine of its own --------------------------------------------------------------------------------------------
room=$WALKTHROUGH_INSIDE
trap 'status=$?; [ $status = 0 ] || { echo; echo "walkthrough: failed; the logs:"; tail -n 30 "$room"/*.log; }; exit $status' EXIT
mount -t tmpfs -o mode=755 none "$room"
ip link set lo up
mkdir -p "$room"/{etc,srv,run,mnt,lib,home/alice,home/bob,bin}
cp -a /etc/. "$room/etc/"
printf '127.0.0.1 localhost\n127.0.0.1 storage\n127.0.0.2 backup\n127.0.0.3 keys\n' > "$room/etc/hosts"
rm -rf "$room/etc/strongroom"
for place in etc srv run mnt; do mount --bind "$room/$place" "/$place"; done
mount --bind "$room/lib" /var/lib
ln -s "$program" "$room/bin/strongroom"
export PATH="$room/bin:$PATH:/usr/sbin:/sbin" HOME="$room/home/alice"
unset XDG_CONFIG_HOME XDG_RUNTIME_DIR STRONGROOM_KEY_FILE STRONGROOM_KEY_SERVER STRONGROOM_IDENTITY
cd "$HOME"
# Output that pauses for a moment is enough here.
export NO_COLOR=1

# --- What the steps are made of --------------------------------------------------------------------------------------
said=
title() { printf '\n## %s\n' "$*"; }
# Types a command, which must succeed; `said` is then what it printed.
try() {
  printf '\n$ %s\n' "$*"
  if ! said=$(eval "$*" 2>&1 < /dev/null); then
    printf '%s\n' "$said"; echo "walkthrough: that should have succeeded"; exit 1
  fi
  printf '%s\n' "$said" | head -n 20
}
# The same of one that must fail.
refused() {
  printf '\n$ %s\n' "$*"
  if said=$(eval "$*" 2>&1 < /dev/null); then
    printf '%s\n' "$said"; echo "walkthrough: that should have been refused"; exit 1
  fi
  printf '%s\n' "$said" | head -n 20
}
# It must have said this.
says() { case "$said" in *"$1"*) ;; *) echo "walkthrough: it should have said: $1"; exit 1 ;; esac; }
# Starts a server in the background and waits until it says that it serves.
server() { # NAME READY COMMAND
  printf '\n$ %s &\n' "$3"
  eval "exec $3" > "$room/$1.log" 2>&1 < /dev/null &
  eval "pid_$1=$!"
  until_true "grep -q '$2' '$room/$1.log'"
  sed -n "/$2/p" "$room/$1.log"
}
stop() { # NAME
  local pid; eval "pid=\$pid_$1"
  printf '\n$ kill %s   # the %s\n' "$pid" "$1"
  kill "$pid"; wait "$pid"
}
until_true() { local i; for i in $(seq 300); do if eval "$1"; then return; fi; sleep 0.1; done; echo "walkthrough: never true: $1"; exit 1; }

# --- By hand: identities, and a configuration that names them (the README's own commands: scripts/five-minutes.sh) ---------
title "On the initiator: an identity and a key"
try strongroom identity new; alice=$(printf '%s\n' "$said" | grep ^strongroom-ed25519)
try strongroom key new --out "~/vault.key"

title "On the storage host: an identity, a configuration, a volume"
try strongroom identity new --out /etc/strongroom/identity; host=$(printf '%s\n' "$said" | grep ^strongroom-ed25519)
try cp "$sources/examples/strongroom.toml" /etc/strongroom/
try sed -i "'s|strongroom-ed25519 REPLACE-WITH-THE-LINE-FROM-ALICE|$alice|'" /etc/strongroom/strongroom.toml
try strongroom serve --check; says "in order"
server target "serving on" "strongroom serve"
grep -q "there are no volumes" "$room/target.log"
try strongroom volume create vault --size 128MiB --peer alice; says "volume format"

title "On the initiator again: attach, use, detach"
refused strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/vault; says "no key is known"
try "echo 'storage $host' >> ~/.config/strongroom/known_targets"
refused strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/vault; says "volume format"
try strongroom volume format strongroom://storage/vault --key-file "~/vault.key" --yes; says "formatted"
refused strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/vault --mount /mnt/vault; says "--mkfs ext4"
try strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/vault --mount /mnt/vault --mkfs ext4; says /mnt/vault
try cp -r "$sources/docs" /mnt/vault/documents
try strongroom attach list; says "strongroom://storage/vault"
try strongroom status; says vault
try strongroom detach /mnt/vault
try strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/vault --mount /mnt/vault
try diff -r "$sources/docs" /mnt/vault/documents

title "Mistakes that must not lose data"
refused strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/vault --mount /mnt/vault; says "attached at"
try strongroom key new --out "~/wrong.key"
refused strongroom volume format strongroom://storage/vault --key-file "~/wrong.key" --yes
refused strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/second --mount /mnt/second; says "initiator"
try diff -r "$sources/docs" /mnt/vault/documents
try strongroom volume verify strongroom://storage/vault --key-file "~/vault.key" --read-only; says "0 do not open"

title "Snapshots, and another server"
try sync
try strongroom volume snapshot create vault@monday
try strongroom volume snapshot list vault; says monday
try strongroom identity new --out "~/backup.identity"; backup=$(printf '%s\n' "$said" | grep ^strongroom-ed25519)
try "strongroom volume send vault@monday > ~/monday.stream"
try "strongroom volume receive vault --root /srv/backup < ~/monday.stream"
try "echo more > /mnt/vault/more && sync"
try strongroom volume snapshot create vault@tuesday
try "strongroom volume send vault@tuesday --from monday | strongroom volume receive vault --root /srv/backup"
server backup "serving on" "strongroom serve --root /srv/backup --listen 127.0.0.2:3262 --identity ~/backup.identity --peer 'name=alice; key=$alice; volumes=*'"
try "echo 'backup:3262 $backup' >> ~/.config/strongroom/known_targets"
try strongroom attach strongroom://backup:3262/vault@tuesday --key-file "~/vault.key" --to /run/copy --mount /mnt/copy --read-only
try diff -r "$sources/docs" /mnt/copy/documents
try cat /mnt/copy/more; says more
try strongroom detach /mnt/copy
try strongroom attach strongroom://backup:3262/vault --key-file "~/vault.key" --to /run/copy --mount /mnt/copy --read-only
try "echo night > /mnt/vault/night && sync"
try strongroom volume snapshot create vault@wednesday
try "strongroom volume send vault@wednesday --from tuesday | strongroom volume receive vault --root /srv/backup"
try strongroom status --root /srv/backup; says "waits for sessions that see 'tuesday'"
refused ls /mnt/copy/night
try strongroom detach /mnt/copy
try strongroom attach strongroom://backup:3262/vault --key-file "~/vault.key" --to /run/copy --mount /mnt/copy --read-only
try cat /mnt/copy/night; says night
try strongroom detach /mnt/copy
stop backup

title "A larger volume"
try strongroom volume resize vault --size 192MiB
try strongroom volume grow strongroom://storage/vault --key-file "~/vault.key" --from 128MiB; says usable

title "Trouble: the server is killed, and comes back"
kill -9 "$pid_target"; wait "$pid_target" 2>/dev/null || true
# Of a process that was killed, the kernel closes the sockets that its io_uring holds when it comes to it.
until_true "! ss -Hltn 'sport = :3260' | grep -q ."
( cp -r "$sources/docs" /mnt/vault/again && sync ) & writer=$!
server target "serving on" "strongroom serve"
wait "$writer"
try diff -r "$sources/docs" /mnt/vault/again
try strongroom detach /mnt/vault

title "Trouble: the attachment is killed"
try strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/vault --mount /mnt/vault --take-over
victim=$(sed -n 's/^attached by process \([0-9]*\);.*/\1/p' <<< "$said")
printf '\n$ kill -9 %s\n' "$victim"; kill -9 "$victim"
until_true "strongroom attach list | grep -q 'has died'"
refused strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/vault --mount /mnt/vault; says "strongroom detach"
try strongroom detach /mnt/vault; says "unmounted"
try strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/vault --mount /mnt/vault --take-over
try diff -r "$sources/docs" /mnt/vault/documents
try strongroom detach /mnt/vault

title "A file as a volume's contents, and back"
try strongroom volume create files --size 8MiB --peer alice
try strongroom volume format strongroom://storage/files --key-file "~/vault.key" --yes
try "head -c 8M /dev/urandom > ~/disk.img"
try strongroom copy "~/disk.img" strongroom://storage/files --key-file "~/vault.key" --quiet
try strongroom copy strongroom://storage/files "~/back.img" --key-file "~/vault.key" --quiet
try cmp "~/disk.img" "~/back.img"

title "A plain volume, with CHAP"
try "install -d -m 700 /etc/strongroom/chap && (umask 077; echo 'a secret of bob' > /etc/strongroom/chap/bob)"
try "printf '\n[[chap]]\nuser = \"bob\"\nsecret_file = \"/etc/strongroom/chap/bob\"\n\n[[plain]]\ninitiators = [\"*\"]\nvolumes = [\"scratch\"]\nchap = [\"bob\"]\n' >> /etc/strongroom/strongroom.toml"
try strongroom volume create scratch --size 8MiB --plain
try strongroom reload
try strongroom copy "~/disk.img" iscsi://storage/iqn.2026-11.org.strongroom:scratch/0 --chap-user bob --chap-secret-file /etc/strongroom/chap/bob --quiet
refused strongroom copy iscsi://storage/iqn.2026-11.org.strongroom:scratch/0 "~/x.img" --quiet

title "A key server"
try strongroom identity new --out /etc/strongroom/keyserver.identity; keys=$(printf '%s\n' "$said" | grep ^strongroom-ed25519)
try strongroom key new --for master --out /etc/strongroom/master.key
try cp "$sources/examples/keyserver.toml" /etc/strongroom/
try sed -i "'s|^key = \"strongroom-ed25519 AQEB.*|key = \"$alice\"|'" /etc/strongroom/keyserver.toml
try strongroom keyserver --check; says "the first start makes one"
server keys "key server on" "strongroom keyserver"
try "echo 'keys:3261 $keys' >> ~/.config/strongroom/known_targets"
try strongroom volume create ledger --size 16MiB --custody keyserver --peer alice
create=$(printf '%s\n' "$said" | grep -o 'strongroom key create [^`]*' | head -n 1 | sed 's/KEYS$/keys/')
case $create in *--key-server*) ;; *) create="$create --key-server keys" ;; esac
try "$create"
try strongroom volume format strongroom://storage/ledger --yes --key-server keys
try strongroom attach strongroom://storage/ledger --key-server keys --to /run/ledger
try strongroom attach list; says "epoch 1"
try strongroom detach /run/ledger
try strongroom key backup "~/keys.backup" --key-server keys
try strongroom key audit --key-server keys; says create
try "STRONGROOM_KEY_SERVER=keys strongroom volume verify strongroom://storage/vault --key-file ~/vault.key --read-only"

if [ -z "$short" ]; then
  title "The lease of an attachment that died ends by itself"
  try strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/vault
  victim=$(sed -n 's/^attached by process \([0-9]*\);.*/\1/p' <<< "$said")
  printf '\n$ kill -9 %s\n' "$victim"; kill -9 "$victim"
  until_true "strongroom attach list | grep -q 'has died'"
  try strongroom detach /run/vault
  try strongroom attach strongroom://storage/vault --key-file "~/vault.key" --to /run/vault
  try strongroom detach /run/vault
fi

title "The end"
stop keys
stop target
try strongroom store check /srv/strongroom/vault/store; says "all are as they were written"
echo; echo "walkthrough: every step did what the documents say"

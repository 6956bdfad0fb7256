#!/usr/bin/env bash
# Runs the first commands of the README, "Five minutes", as they stand there, on two machines: the storage host, and an initiator.
#
#   scripts/five-minutes.sh [PROGRAM]
#
# PROGRAM is the strongroom to try [default: target/release/strongroom]. Needs root, and changes nothing on this machine: it runs in namespaces of
# its own, with /etc, /srv, /run, /mnt and the home directories on a temporary directory. The machines are two network namespaces with a cable between
# them; the only thing that is carried from one to the other by hand is the invitation.
set -euo pipefail

program=$(realpath "${1:-$(dirname "$0")/../target/release/strongroom}")
sources=$(realpath "$(dirname "$0")/..")

if [ -z "${FIVE_MINUTES_INSIDE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "five-minutes: needs root" >&2; exit 2; }
  room=$(mktemp -d)
  status=0
  FIVE_MINUTES_INSIDE=$room unshare --mount --propagation slave --net --pid --uts --fork --mount-proc \
    bash "$sources/scripts/five-minutes.sh" "$program" || status=$?
  rmdir "$room"
  exit $status
fi

# --- Two machines ----------------------------------------------------------------------------------------------------
room=$FIVE_MINUTES_INSIDE
trap 'status=$?; [ $status = 0 ] || { echo; echo "five-minutes: failed; the log of the target:"; tail -n 30 "$room/serve.log"; }; exit $status' EXIT
mount -t tmpfs -o mode=755 none "$room"
mkdir -p "$room"/{etc,srv,run,mnt,home/storage,home/alice,bin}
cp -a /etc/. "$room/etc/"
rm -rf "$room/etc/strongroom"
printf '127.0.0.1 localhost\n10.77.0.1 storage\n' > "$room/etc/hosts"
for place in etc srv run mnt; do mount --bind "$room/$place" "/$place"; done
ln -s "$program" "$room/bin/strongroom"
export PATH="$room/bin:$PATH:/usr/sbin:/sbin" NO_COLOR=1
unset XDG_CONFIG_HOME XDG_RUNTIME_DIR STRONGROOM_KEY_FILE STRONGROOM_KEY_SERVER STRONGROOM_IDENTITY STRONGROOM_KNOWN_TARGETS

hostname storage
ip link set lo up
ip netns add alice
ip link add cable type veth peer name cable netns alice
ip address add 10.77.0.1/24 dev cable
ip link set cable up
nsenter --net=/run/netns/alice ip address add 10.77.0.2/24 dev cable
nsenter --net=/run/netns/alice ip link set cable up
nsenter --net=/run/netns/alice ip link set lo up

# --- The README's commands -------------------------------------------------------------------------------------------
# The lines of its code block of this number below the heading.
block() { # NUMBER
  awk -v wanted="$1" '
    /^## / { within = ($0 == "## Five minutes") }
    within && /^```/ { if (inside) inside = 0; else { inside = 1; number++ }; next }
    within && inside && number == wanted' "$sources/README.md"
}
until_true() { local i; for i in $(seq 600); do if eval "$1"; then return; fi; sleep 0.1; done; echo "five-minutes: never true: $1"; exit 1; }

mapfile -t storage < <(block 1)
mapfile -t alice < <(block 2)
count=$((${#storage[@]} + ${#alice[@]}))
[ "$count" -ge 4 ] && [ "$count" -le 6 ] || { echo "five-minutes: the README has $count commands; at most six are promised"; exit 1; }

invitation=
for line in "${storage[@]}"; do
  printf 'storage# %s\n' "$line"
  case $line in
    *'&'*) (export HOME="$room/home/storage"; cd; eval "$line"; echo $! > "$room/pid") < /dev/null > "$room/serve.log" 2>&1
      until_true "grep -q 'serving on' '$room/serve.log'" ;;
    *) said=$(export HOME="$room/home/storage"; cd; eval "$line" < /dev/null)
      printf '%s\n' "$said"
      case $said in strongroom-invitation1:*) invitation=$said ;; esac ;;
  esac
done
[ -n "$invitation" ] || { echo "five-minutes: there is no invitation"; exit 1; }
for line in "${alice[@]}"; do
  printf 'alice# %s\n' "$line"
  printf '%s\n' "$invitation" > "$room/pasted"
  HOME="$room/home/alice" nsenter --net=/run/netns/alice bash -ec "cd; $line" < "$room/pasted"
done
rm "$room/pasted"

# --- What has come of it ---------------------------------------------------------------------------------------------
mountpoint -q /mnt/vault
echo "a file" > /mnt/vault/file
export HOME="$room/home/alice"
nsenter --net=/run/netns/alice strongroom detach /mnt/vault
[ -s "$HOME/vault.key" ] && [ ! -e "$room/home/storage/vault.key" ]
target=$(cat "$room/pid")
kill "$target"
until_true "! kill -0 $target 2> /dev/null"
ip netns delete alice
echo "five-minutes: every command of the README did what it says"

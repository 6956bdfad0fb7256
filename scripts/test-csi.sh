#!/usr/bin/env bash
# The CSI driver, as root: the specification's own test suite, csi-sanity, against a controller and a node with a real target, real attachments (FUSE,
# loop devices) and real file systems; as directories and as block devices, with keys from a secret and from a key server. Then our own test of what
# the suite does not look at: crates/csi/tests/it/system.rs. Run by `make test-csi`. Go installs csi-sanity into the folder of the build.
#
#   scripts/test-csi.sh PROGRAM [FOLDER]     FOLDER: where csi-sanity is installed [target/csi]
set -euo pipefail

readonly CSI_TEST_VERSION="v5.6.0"
# Of csi-test's go.mod.
readonly GO_MIN="1.25"

program=$(realpath "${1:?the program: target/release/strongroom}")
cd "$(dirname "$0")/.."
folder=${2:-target/csi}
mkdir -p "$folder"
folder=$(realpath "$folder")

say() { echo "csi: $*"; }
fail() { say "$*" >&2; [ -z "${work:-}" ] || tail -n 30 "$work"/*.log >&2; exit 1; }

[ "$(id -u)" -eq 0 ] || fail "mounting needs root"
command -v go >/dev/null || fail "Go $GO_MIN or newer is missing; install it from https://go.dev/dl/"
version=$(go env GOVERSION | sed 's/^go//')
[ "$(printf '%s\n%s\n' "$GO_MIN" "$version" | sort -V | head -n 1)" = "$GO_MIN" ] || fail "Go $version is older than $GO_MIN; see https://go.dev/dl/"
sanity="$folder/csi-sanity"
if [ ! -x "$sanity" ]; then
  say "installing csi-sanity $CSI_TEST_VERSION"
  GOBIN="$folder" go install "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@$CSI_TEST_VERSION"
fi

# Secrets may only be where memory is.
work=$(mktemp -d -p /dev/shm strongroom-csi.XXXXXX)
processes=()
end() {
  local status=$?
  for process in "${processes[@]}"; do kill "$process" 2>/dev/null || true; wait "$process" 2>/dev/null || true; done
  [ "$status" -ne 0 ] && [ -n "${KEEP:-}" ] || rm -rf "$work"
}
trap end EXIT
readonly user_home=$HOME
export HOME="$work/home"
mkdir "$HOME"
run() { "$program" "$@"; }
start() {
  local log="$work/$1.log"; shift
  "$program" "$@" >>"$log" 2>&1 &
  processes+=($!)
}
wait_for() { for _ in $(seq 300); do if "$@" 2>/dev/null; then return; fi; sleep 0.1; done; fail "not in time: $*"; }
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1"); }

port=$((20000 + RANDOM % 10000))
keys_port=$((30000 + RANDOM % 10000))
for name in target keys controller worker-1 owner; do run identity new --out "$work/$name.identity" >/dev/null 2>&1; done
line() { run identity show "$work/$1.identity"; }
mkdir "$work/volumes"
cat >"$work/target.toml" <<TOML
root = "$work/volumes"
listen = ["127.0.0.1:$port"]
node_key = "$work/target.identity"
[[peer]]
name = "controller"
key = "$(line controller)"
volumes = []
role = "operator"
[[peer]]
name = "worker-1"
key = "$(line worker-1)"
volumes = []
TOML
start target serve --config "$work/target.toml"
run key new --out "$work/volume.key" >/dev/null
run key new --for master --out "$work/master.key" >/dev/null
cat >"$work/keyserver.toml" <<TOML
directory = "$work/keys"
listen = ["127.0.0.1:$keys_port"]
node_key = "$work/keys.identity"
master_key = "$work/master.key"
[[identity]]
name = "owner"
key = "$(line owner)"
roles = ["creator"]
TOML
start keyserver keyserver --config "$work/keyserver.toml"
wait_for listens "$port"
wait_for listens "$keys_port"

# Secrets by the names that the suite has for requests.
secrets() {
  for request in CreateVolumeSecret DeleteVolumeSecret ControllerPublishVolumeSecret ControllerUnpublishVolumeSecret \
    ControllerValidateVolumeCapabilitiesSecret NodeStageVolumeSecret NodePublishVolumeSecret CreateSnapshotSecret DeleteSnapshotSecret \
    ControllerExpandVolumeSecret ListSnapshotsSecret; do
    printf '%s:\n  %s: |\n' "$request" "$1"
    sed 's/^/    /' "$2"
  done
}

# NAME ACCESS-TYPE CUSTODY SECRET FILE
check() {
  local name=$1 access=$2 custody=$3
  secrets "$4" "$5" >"$work/secrets.yaml"
  echo "custody: $custody" >"$work/parameters.yaml"
  local state="$work/state" both=(--target "127.0.0.1:$port" --target-key "$(line target)" --target-name here)
  start controller csi --services controller --endpoint "unix://$work/controller.sock" --identity "$work/controller.identity" "${both[@]}"
  start worker-1 csi --services node --endpoint "unix://$work/node.sock" --identity "$work/worker-1.identity" --node-id worker-1 \
    --state-dir "$state" --key-server "127.0.0.1:$keys_port" --key-server-key "$(line keys)" "${both[@]}"
  wait_for test -S "$work/controller.sock"
  wait_for test -S "$work/node.sock"
  say "csi-sanity: $name"
  "$sanity" -csi.endpoint "unix://$work/node.sock" -csi.controllerendpoint "unix://$work/controller.sock" \
    -csi.mountdir "$work/mount" -csi.stagingdir "$work/staging" -csi.secrets "$work/secrets.yaml" \
    -csi.testvolumeparameters "$work/parameters.yaml" -csi.testvolumeaccesstype "$access" \
    -csi.testvolumesize $((64 << 20)) -csi.testvolumeexpandsize $((128 << 20)) \
    --ginkgo.v=0 --ginkgo.no-color >"$work/sanity.log" 2>&1 || { cat "$work/sanity.log"; fail "csi-sanity: $name"; }
  grep -a -e '^Ran ' -e 'Passed' "$work/sanity.log" | sed 's/^/csi: /'
  for process in "${processes[@]: -2}"; do kill "$process"; wait "$process" || fail "a driver did not end well"; done
  processes=("${processes[@]:0:${#processes[@]}-2}")
  [ ! -e "$work/node.sock" ] || fail "the socket is left"
  ! run attach list | grep -F "127.0.0.1:$port" || fail "something is still attached"
  ! grep -F "$work" /proc/self/mountinfo || fail "something is still mounted"
  [ -z "$(ls -A "$state/keys")" ] || fail "a secret is left"
  [ -z "$(ls "$work/volumes")" ] || fail "a volume is left: $(ls "$work/volumes")"
}

check "ext4, keys from a secret" mount keyfile keyFile "$work/volume.key"
check "block devices, keys from a secret" block keyfile keyFile "$work/volume.key"
check "ext4, keys from a key server" mount keyserver keyServerIdentity "$work/owner.identity"
check "ext4, plain" mount none unused "$work/parameters.yaml"

# The volume key's line, and the seed of an identity, in any log.
for secret in volume.key owner.identity; do
  while read -r word; do
    [ "${#word}" -lt 40 ] || ! grep -F -e "$word" "$work"/*.log >/dev/null || fail "a secret of $secret is in a log"
  done < <(grep -v '^#' "$work/$secret" | tr ' ' '\n')
done

say "our own test"
HOME=$user_home STRONGROOM_PROGRAM=$program cargo test --locked --package strongroom-csi --test it system -- --test-threads 1
say "passed"

#!/usr/bin/env bash
# Pictures of the Grafana dashboard's queries, drawn by Prometheus itself: serves and attaches a sealed volume on this machine, lets fio work on it for
# two minutes while the target is killed once, and takes screenshots of Prometheus' pages.
#
#   scripts/metrics-pictures.sh [PROGRAM [FOLDER]]
#
# PROGRAM is the strongroom to try [default: target/release/strongroom]; the pictures go to FOLDER [default: docs/metrics]. Needs root (FUSE), fio,
# prometheus, chromium (scripts/deps.sh --browser) and the loopback ports 19464 to 19467.
set -euo pipefail

sources=$(realpath "$(dirname "$0")/..")
program=$(realpath "${1:-$sources/target/release/strongroom}")
folder=$(realpath -m "${2:-$sources/docs/metrics}")
for tool in fio prometheus chromium python3; do
  command -v "$tool" > /dev/null || { echo "metrics-pictures: $tool is missing: run scripts/deps.sh --browser" >&2; exit 2; }
done
room=$(mktemp -d)
pids=()
end() {
  status=$?
  "$program" detach "$room/attached" > /dev/null 2>&1 || true
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  wait 2> /dev/null || true
  [ $status = 0 ] || tail -n 20 "$room"/*.log >&2
  rm -rf "$room"
  exit $status
}
trap end EXIT
export HOME=$room XDG_CONFIG_HOME=$room/config XDG_RUNTIME_DIR=$room
until_true() { local i; for i in $(seq 300); do if eval "$1"; then return; fi; sleep 0.1; done; echo "metrics-pictures: never true: $1" >&2; exit 1; }

# --- A volume at work ------------------------------------------------------------------------------------------------
"$program" identity new --out "$room/storage.identity" > /dev/null
"$program" identity new --out "$room/alice.identity" > /dev/null
"$program" key new --out "$room/vault.key" > /dev/null
public() { "$program" identity show "$1" | tail -n 1; }
cat > "$room/strongroom.toml" <<CONFIG
root = "$room/volumes"
listen = ["127.0.0.1:19467"]
node_key = "$room/storage.identity"
metrics = "127.0.0.1:19464"
[[peer]]
name = "alice"
key = "$(public "$room/alice.identity")"
volumes = ["vault"]
CONFIG
"$program" volume create vault --size 256MiB --custody keyfile --root "$room/volumes" > /dev/null
serve() { "$program" serve --config "$room/strongroom.toml" >> "$room/serve.log" 2>&1 & target=$!; pids+=("$target"); }
serve
until_true '(exec 3<> /dev/tcp/127.0.0.1/19467) 2> /dev/null'
url=strongroom://127.0.0.1:19467/vault
access=(--identity "$room/alice.identity" --target-key "$(public "$room/storage.identity")" --key-file "$room/vault.key")
"$program" volume format "$url" --yes "${access[@]}" > /dev/null
"$program" attach "$url" --to "$room/attached" --metrics 127.0.0.1:19465 "${access[@]}" > /dev/null

sed -e 's/15s/1s/' -e 's/:946/:1946/' "$sources/contrib/prometheus/strongroom.yml" > "$room/prometheus.yml"
cp "$sources/contrib/prometheus/strongroom.rules.yml" "$room/"
prometheus --config.file="$room/prometheus.yml" --storage.tsdb.path="$room/data" --web.listen-address=127.0.0.1:19466 > "$room/prometheus.log" 2>&1 &
pids+=($!)

echo "metrics-pictures: two minutes of reads and writes, with a target that is killed after 60 s"
fio --name=load --filename="$room/attached/vault" --size=192m --rw=randrw --rwmixread=70 --bs=4k --iodepth=8 --ioengine=libaio --direct=1 \
  --rate_iops=1500,600 --time_based --runtime=110 --output="$room/fio.log" &
load=$!
sleep 60
kill -9 "$target"
sleep 5
serve
wait "$load"

# --- Its pictures ----------------------------------------------------------------------------------------------------
picture() { # NAME PANEL...: the queries of these panels of the dashboard, one graph each.
  local name=$1 address
  shift
  address=$(python3 - "$sources/contrib/grafana/strongroom.json" "$@" <<'PYTHON'
import json, sys, urllib.parse
panels = json.load(open(sys.argv[1]))["panels"]
queries = []
for title in sys.argv[2:]:
    targets = [target for panel in panels if panel["title"] == title for target in panel.get("targets", [])]
    if not targets:
        sys.exit(f"metrics-pictures: the dashboard has no panel '{title}'")
    # Of the two quantiles the higher one.
    queries.append(targets[-1 if "percentile" in title else 0]["expr"].replace('{instance=~"$instance"}', "").replace('instance=~"$instance", ', "")
                   .replace('volume=~"$volume"', 'volume=~".+"').replace("$__rate_interval", "5s"))
pairs = [(f"g{i}.{key}", value) for i, expr in enumerate(queries)
         for key, value in (("expr", expr), ("tab", "0"), ("stacked", "0"), ("range_input", "2m"), ("step_input", "1"))]
print("http://127.0.0.1:19466/graph?" + urllib.parse.urlencode(pairs))
PYTHON
  )
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$room/chromium" --window-size="1100,$((150 + 740 * $#))" \
    --virtual-time-budget=20000 --screenshot="$folder/$name.png" "$address" > "$room/chromium.log" 2>&1
  echo "metrics-pictures: $folder/$name.png"
}
mkdir -p "$folder"
picture target "Commands" "Latency, median and 99th percentile" "Log"
picture attachment "Requests: median and 99th percentile" "Unflushed" "Sent again"

#!/usr/bin/env bash
# Looks at the web console with a real browser: `scripts/console/test.py` says at what. axe, which checks accessibility, is fetched by npm into
# a directory that goes away.
#
#   scripts/test-console.sh PROGRAM [DIRECTORY]     DIRECTORY: where screenshots go [target/console]
set -euo pipefail

readonly AXE_VERSION="4.14.1"

program=${1:?the program: target/release/strongroom}
screenshots=${2:-target/console}
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --prefix "$work" --no-save --ignore-scripts --no-audit --no-fund --silent "axe-core@$AXE_VERSION"
mkdir -p "$screenshots"
export PYTHONDONTWRITEBYTECODE=1
# Debian's Python, which has Debian's selenium.
/usr/bin/python3 scripts/console/test.py "$program" "$work/node_modules/axe-core/axe.min.js" "$work" "$screenshots"

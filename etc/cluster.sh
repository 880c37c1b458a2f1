#!/bin/sh
# Starts an etcd and three brokers on this machine, for a first look at a cluster: `make cluster`.
#
#   sh etc/cluster.sh           all of them, until Ctrl-C
#   sh etc/cluster.sh a         broker a alone, again, after it was killed (or b, or c)
#
# - Everything listens on loopback only, on ports that follow from PORT (9000): broker a has PORT+100 for Elko, +101 for the
#   console, +102 mc0, +103 DBP, +104 and +105 MTL, +180 HTTP; b has PORT+200 and so on, c PORT+300. etcd has PORT+479.
# - State and logs are in a directory below $TMPDIR, which is removed at the end.
# - A killed broker stays away: start it again as above, or see its entries go.
set -eu
cd "$(dirname "$0")/.."

port=${PORT:-9000}
dir=${TMPDIR:-/tmp}/elkobroker-cluster-$port
etcd_port=$((port + 479))
url=http://127.0.0.1:$etcd_port
twistd=.venv/bin/twistd
ctl=.venv/bin/brokerctl

say() { echo "cluster: $*"; }

base_of() {
    case $1 in
        a) echo $((port + 100)) ;;
        b) echo $((port + 200)) ;;
        c) echo $((port + 300)) ;;
        *) echo "usage: $0 [a|b|c]" >&2; exit 2 ;;
    esac
}

# Replaces this shell by the broker of that name.
broker() {
    base=$(base_of "$1")
    mkdir -p "$dir/$1"
    # A shell in the background has SIGINT ignored: the end is by SIGTERM.
    exec "$twistd" -n --pidfile="$dir/$1/pid" elkobroker --config "$dir/cluster.toml" \
        --name "$1" --cluster "$url" --state "$dir/$1" \
        --port "$base" --console-port $((base + 1)) --mc0-port $((base + 2)) --dbp-port $((base + 3)) \
        --mtl-port $((base + 4)) --http-port $((base + 80))
}

find_etcd() {
    for candidate in ${ETCD:-} "$(command -v etcd || true)" /usr/bin/etcd /usr/local/bin/etcd; do
        if [ -x "$candidate" ]; then etcd=$candidate; return 0; fi
    done
    return 1
}

need_etcd() {
    find_etcd && return 0
    cat >&2 <<'END'
cluster: etcd was not found. Install it:
    Debian, Ubuntu:  sudo apt-get install etcd-server
    Fedora:          sudo dnf install etcd
    macOS:           brew install etcd
or name it:          make cluster ETCD=/path/to/etcd
The service that Debian's package starts is not needed: sudo systemctl disable --now etcd
END
    return 1
}

# Whether a URL of this machine answers: no proxy of the environment is asked.
answers() {
    .venv/bin/python -c 'import sys, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(sys.argv[1], timeout=2)' \
        "$1" 2>/dev/null
}

# Waits until a URL answers, at most 30 s and only while the process lives.
wait_for() {
    tries=0
    until answers "$1"; do
        tries=$((tries + 1))
        if [ $tries -gt 100 ] || ! kill -0 "$2" 2>/dev/null; then
            say "$3 does not answer at $1; the end of its log:" >&2
            tail -n 5 "$4" >&2
            return 1
        fi
        sleep 0.3
    done
}

started=
finish() {
    trap - INT TERM EXIT
    # A reader of the output that has gone does not keep the brokers alive.
    trap '' PIPE
    { echo && say "stopping"; } 2>/dev/null || true
    # Brokers that were started again by hand have their process ids in these files as well.
    for file in "$dir"/[abc]/pid; do
        if [ -e "$file" ]; then kill "$(cat "$file")" 2>/dev/null || true; fi
    done
    for process in $started; do wait "$process" 2>/dev/null || true; done
    if [ -n "${etcd_process:-}" ]; then
        kill "$etcd_process" 2>/dev/null || true
        wait "$etcd_process" 2>/dev/null || true
    fi
    rm -rf "$dir"
}

if [ $# -gt 0 ]; then
    base_of "$1" >/dev/null
    broker "$1"
fi

need_etcd
if [ -e "$dir" ]; then
    say "$dir exists: another cluster runs on these ports (PORT=..., or remove the directory)" >&2
    exit 1
fi
mkdir -p "$dir/etcd"
# These brokers are expected: one that is missing is shown. Each entry needs another address.
cat >"$dir/cluster.toml" <<'END'
[cluster]
members = ["a=127.0.0.1", "b=127.0.0.2", "c=127.0.0.3"]
advertise = "127.0.0.1"
END
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$etcd" --name demo --data-dir "$dir/etcd" --logger zap --log-outputs stderr \
    --listen-client-urls "$url" --advertise-client-urls "$url" \
    --listen-peer-urls "http://127.0.0.1:$((etcd_port + 1))" \
    --initial-advertise-peer-urls "http://127.0.0.1:$((etcd_port + 1))" \
    --initial-cluster "demo=http://127.0.0.1:$((etcd_port + 1))" \
    --auto-compaction-mode periodic --auto-compaction-retention 5m >"$dir/etcd.log" 2>&1 &
etcd_process=$!
wait_for "$url/health" "$etcd_process" etcd "$dir/etcd.log"
say "etcd at $url"
for name in a b c; do
    broker "$name" >"$dir/$name.log" 2>&1 &
    started="$started $!"
    base=$(base_of "$name")
    wait_for "http://127.0.0.1:$((base + 80))/healthz" "$!" "broker $name" "$dir/$name.log"
    say "broker $name: Elko on $base, HTTP and the page at http://127.0.0.1:$((base + 80))/ (log: $dir/$name.log)"
done

a=$(base_of a) b=$(base_of b)
cat <<END

Register a service at a, and find it at b:
    curl -X PUT http://127.0.0.1:$((a + 80))/v1/services/bank/1 -d '{"hostport": "10.0.0.1:80", "ttl": 600}'
    curl http://127.0.0.1:$((b + 80))/v1/services/bank
Look at the cluster, from any broker:
    $ctl --url http://127.0.0.1:$((b + 80)) cluster
Kill a, see its entries go within 11 seconds, and start it again:
    kill -9 \$(cat $dir/a/pid)
    $ctl --url http://127.0.0.1:$((b + 80)) watch
    PORT=$port sh etc/cluster.sh a
Send the peers of b away before you stop it:
    $ctl --url http://127.0.0.1:$((b + 80)) drain --yes

Ctrl-C stops everything.
END
# The brokers may come and go; etcd stays until the end.
wait "$etcd_process" || true

#!/bin/sh
# The checks that take hours, each with its result in a folder that stays: `make nightly` calls this script.
#
#   PARTS    which: fuzz, histories, queues, rounds, soak, mutants, builds [all]
#   RESULTS  where to: a folder for this run is in it   [nightly]
#
# For a try in minutes: PROFILE=everyday (of Hypothesis), HISTORIES=100, ROUNDS=2, WARM_UP=60 and SECONDS_OF_SOAK=120,
# MUTANTS=5.
#
#   fuzz       10,000 examples of each property of tests/fuzz
#   histories  10,000 simulated histories of a cluster, with seeds of this day
#   queues     10,000 histories of durable queues over a store of two brokers, with seeds of this day
#   rounds     200 rounds of a farm of 100 providers, on hosts of their own, with faults of brokers, networks and etcd
#   soak       an hour of mixed use: fails if the memory rises by more than the goal of bench/soak.py
#   mutants    changes by chance in files that changed within a day: fails if tests notice too few of them
#   builds     the packages and the image, as root on Debian, twice by reprotest: fails if the bytes differ
set -u
cd "$(dirname "$0")/.."
PARTS=${PARTS:-fuzz histories queues rounds soak mutants builds}
run=${RESULTS:-nightly}/$(date -u +%Y-%m-%dT%H%MZ)
mkdir -p "$run"
python=.venv/bin/python
# A day has seeds that no day before had.
first=$(($(date +%s) / 86400 * 100000))
seeds="--seeds $first-$((first + ${HISTORIES:-10000} - 1)) --jobs 2 --all"

command_of() {
    case $1 in
        fuzz) echo "env HYPOTHESIS_PROFILE=${PROFILE:-long} $python -m pytest --long --numprocesses=2 --timeout=21600 tests/fuzz" ;;
        histories) echo "$python -m tests.cluster.simulation $seeds" ;;
        queues) echo "$python -m tests.core.queues $seeds" ;;
        rounds) echo "$python -m tests.cluster.farm.rounds --rounds ${ROUNDS:-200} --seed $(date +%j) --directory $run/farm" ;;
        soak) echo "$python -m bench.soak --warm-up ${WARM_UP:-600} --seconds ${SECONDS_OF_SOAK:-3600} --threads 6 --samples $run/soak.samples" ;;
        mutants) echo "$python -m tests.mutants --since $(git rev-list --max-count=1 --before='1 day ago' HEAD) --number ${MUTANTS:-100} --results $run/mutants.md" ;;
        builds) echo "env DIST=$run/dist sh etc/package.sh twice" ;;
        *) echo "usage: PARTS='fuzz histories queues rounds soak mutants builds' $0" >&2; exit 2 ;;
    esac
}

failed=0
for part in $PARTS; do
    command=$(command_of "$part") || exit 2
    began=$(date +%s)
    # The words of a command have no spaces.
    if $command >"$run/$part.log" 2>&1; then result=passed; else result=failed; failed=1; fi
    echo "$part $result in $((($(date +%s) - began) / 60)) min: $(tail -n 1 "$run/$part.log" | cut -c 1-160)" | tee -a "$run/summary"
done
# Logs of rounds that passed are not needed.
if ! grep -q '^rounds failed' "$run/summary"; then rm -rf "$run/farm"; fi
echo "the results are in $run"
exit $failed

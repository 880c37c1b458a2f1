# Four commands: `make run` for a broker, `make cluster` for three that share a registry, `make plan` for a capacity plan,
# `make test` for the tests of all. Each sets up .venv first; see etc/setup.sh.

PORT ?= 9000
ARGS ?=
# The program etcd of `make cluster`; empty: the one of the system.
ETCD ?=
# Tests wait for most of their time. Those of faults, which are long, bear less beside them.
WORKERS ?= $(if $(LONG),2,4)
# Not empty: run the long tests as well.
LONG ?=
# The revision since which files have changed that get mutants.
SINCE ?= HEAD~20

# With this variable, each broker that a test starts would compile all its modules again, and each run all its tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run cluster plan test check mutants nightly install uninstall docs packages release clean

help:
	@echo 'make run    sets up everything, then runs a broker on port $(PORT) (PORT=9100, ARGS="--bind 0.0.0.0")'
	@echo 'make cluster  sets up everything, then runs an etcd and three brokers on this machine (PORT=9000, ETCD=/path/to/etcd)'
	@echo 'make plan   sets up everything, Java included, then plans for a generated month (ARGS="--out DIR")'
	@echo 'make test   sets up everything, then runs the checks and tests, four at a time (WORKERS=2, ARGS="tests/core")'
	@echo '            LONG=1 runs the tests marked long as well'
	@echo 'make check  the checks alone: style, types, import rules'
	@echo 'make mutants  random mutants of the files changed since SINCE ($(SINCE)); survivors in dist/mutants.md'
	@echo 'make nightly  fuzzing, simulated and real clusters with faults, a soak and mutants, for hours (PARTS="soak"); results in nightly'
	@echo 'make install  installs the broker under systemd on Debian, as root (PREFIX=/opt/elkobroker)'
	@echo 'make uninstall  removes it again, but for configuration, state and user'
	@echo 'make docs   builds the pages as a site into dist/site, which needs no network'
	@echo 'make packages  builds the wheel, the source distribution and the Debian package into dist (on Debian)'
	@echo 'make release   builds these and the image twice, as root, compares, sums and signs them, and makes the tag (KEY=key of gpg)'
	@echo 'make clean  removes .venv and all generated files'

run:
	@sh etc/setup.sh run
	exec .venv/bin/twistd -n elkobroker --port $(PORT) $(ARGS)

cluster:
	@sh etc/setup.sh run
	@PORT=$(PORT) ETCD='$(ETCD)' sh etc/cluster.sh

plan:
	@sh etc/setup.sh plan
	exec .venv/bin/python -m tests.spark.demo $(ARGS)

define checks
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/mypy examples
.venv/bin/lint-imports
endef

check:
	@sh etc/setup.sh test
	$(checks)

test:
	@sh etc/setup.sh test
	$(checks)
	.venv/bin/pytest --numprocesses=$(WORKERS) $(if $(LONG),--long --durations=30) $(ARGS)

mutants:
	@sh etc/setup.sh test
	.venv/bin/python -m tests.mutants --since '$(SINCE)' $(ARGS)

nightly:
	@sh etc/setup.sh test
	@sh etc/nightly.sh

install:
	@sh etc/install.sh

uninstall:
	@sh etc/install.sh uninstall

docs:
	@sh etc/setup.sh docs
	@.venv/bin/python etc/site.py dist/site

packages:
	@sh etc/package.sh wheel
	@sh etc/package.sh deb

release:
	@sh etc/package.sh release

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf _trial_temp* twistd.pid twistd.log twisted/plugins/dropin.cache
	rm -f broker/net/zmtp/_*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

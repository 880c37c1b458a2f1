#!/bin/sh
# Writes the bill of materials (SBOM) of a virtual environment, in CycloneDX: sbom.sh PYTHON FILE
#
# PYTHON is the environment's interpreter. The tool gets an environment of its own, so it is not in the bill.
set -eu
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --disable-pip-version-check 'cyclonedx-bom>=7,<8'
mkdir -p "$(dirname "$2")"
"$tools/bin/cyclonedx-py" environment --output-reproducible --output-file "$2" "$1"

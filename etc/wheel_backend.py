"""The build backend: setuptools, which writes no SBOM into a wheel by itself (PEP 770).

The SBOM, in CycloneDX, says that the files of the wheel are the broker's own, and that the wheel bundles no other
software. The libraries that it needs are in the metadata: pip chooses their versions at the installation.
"""

from __future__ import annotations

import email
import json
import tempfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that are left as they are

Settings = dict[str, Any] | None
"""What a build front end hands over; setuptools reads it."""


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    name = build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
    add_sbom(Path(metadata_directory) / name)
    return name


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    if metadata_directory is not None:
        return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    # Without a folder of metadata setuptools makes one of its own, to which nothing can be added.
    with tempfile.TemporaryDirectory() as folder:
        name = prepare_metadata_for_build_wheel(folder, config_settings)
        return build_meta.build_wheel(wheel_directory, config_settings, str(Path(folder) / name))


def add_sbom(dist_info: Path) -> None:
    """Write the SBOM into a folder of metadata: the same bytes for the same version."""
    metadata = email.message_from_string((dist_info / "METADATA").read_text())
    name, version = metadata["Name"], metadata["Version"]
    reference = f"pkg:pypi/{name}@{version}"
    component = {
        "type": "application",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "description": metadata["Summary"],
        "licenses": [{"license": {"id": metadata["License-Expression"]}}],
        "purl": reference,
    }
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component},
        "components": [],
        # Nothing is left out of the empty list.
        "compositions": [{"aggregate": "complete", "assemblies": [reference]}],
    }
    (dist_info / "sboms").mkdir()
    (dist_info / "sboms" / f"{name}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n")

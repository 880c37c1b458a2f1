"""Fixtures of the tests of etcd's client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.real_etcd import Etcd


@pytest.fixture(scope="class")
def one_etcd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One member of the real etcd for all tests of a class, as its attribute ``etcd``."""
    with Etcd(tmp_path_factory.mktemp("etcd")) as request.cls.etcd:
        yield


@pytest.fixture
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A directory for one test, as the attribute ``directory`` of its class."""
    request.cls.directory = tmp_path_factory.mktemp("etcd")

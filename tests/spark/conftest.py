"""One Spark session for all tests: to start one takes as long as many tests do."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.capacity.session import open_session
from spark.capacity.tables.object_store import ObjectFolder
from tests.spark import buckets
from tests.spark.buckets import Store


# Before the long tests are left out.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests on Spark as long: most take little themselves, but Java compiles the code of each anew."""
    for item in items:
        if {"spark", "spark_and_store"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Small data: one part of each exchange, and as little compiling as can be of code that runs once.
    session = open_session(
        "local[2]",
        extra={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            "spark.driver.extraJavaOptions": "-XX:-DontCompileHugeMethods -XX:TieredStopAtLevel=1",
            "spark.sql.warehouse.dir": "/nonexistent",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    """Have an object store, of which the environment tells."""
    with buckets.store() as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture
def bucket(store: Store) -> ObjectFolder:
    return buckets.new_bucket()


@pytest.fixture
def spark_and_store(spark: SparkSession, store: Store) -> SparkSession:
    """Tell the workers of the object store: they have the environment in which Spark was started."""
    told = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    spark.sparkContext.environment.update(told)
    return spark

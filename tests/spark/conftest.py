"""One Spark session for all tests: to start one takes as long as many tests do."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.capacity.session import open_session


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

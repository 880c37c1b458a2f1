"""Ends of registrations, as records tell of them: numbers by which tables and jobs name them."""

import numpy as np
import pyarrow as pa

from spark.capacity.tables.column_reader import is_one
from spark.capacity.tables.time_windows import Ints

OPEN, CLOSED, BROKER, SILENT, WITHDRAWN = -1, 0, 1, 2, 3
"""End of an up interval, if it ended. Of ends at the same moment the last of these counts."""


def ends(batch: pa.RecordBatch) -> Ints:
    """Return the end of the registration that each record tells of, by its event: `OPEN`, `CLOSED` or `WITHDRAWN`."""
    event, why = batch["event"], batch["why"]
    withdrawn = is_one(event, "unregister") & is_one(why, "withdrawn")
    made: Ints = np.where(withdrawn, WITHDRAWN, np.where(is_one(event, "unregister", "expire"), CLOSED, OPEN))
    return made

"""Jobs that run on Spark. They read what the broker writes, and import nothing from it."""

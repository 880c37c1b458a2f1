"""Jobs that run on Spark. They read the broker's journal, and import nothing from it."""

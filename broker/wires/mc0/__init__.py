"""mc0 (Marionette Collective): publish and subscribe over ZeroMQ."""

"""Work queues: at-least-once delivery to competing consumers."""

"""The mc0 codec: frames to frozen messages and back."""

"""Parts that several wires share. No wire imports another wire."""

"""The Elko codec: lines of lenient JSON, as real peers and the documents write it."""

"""Rollup: records become five-minute windows of each provider."""

"""The profiles of MTL: what resources there are, and what becomes of Contents."""

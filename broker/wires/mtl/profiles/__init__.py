"""The profiles of MTL: their resources, and the handling of Contents."""

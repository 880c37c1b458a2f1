"""HTTP as a wire: registration and finding by any program, on the listener of the operators' API."""

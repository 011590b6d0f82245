"""What memory readings mean: needed capacity, and why a run does not fit. Pure."""

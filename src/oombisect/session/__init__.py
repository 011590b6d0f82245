"""One bisection: the loop from the search's plan to probes, to the store, and back; then the verdict."""

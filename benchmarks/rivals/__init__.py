"""The rivals, each in an environment of its own and driven by a worker that knows nothing of lvmogp."""

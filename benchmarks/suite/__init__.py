"""The benchmark suite: we and the rivals side by side in one run, as ratios. ``python -m benchmarks.suite --help``."""

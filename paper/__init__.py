"""The paper's experiments with every baseline; see ``python -m paper --help``."""

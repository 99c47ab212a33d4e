"""The paper's experiments with every baseline; see ``lvmogp reproduce --help``."""

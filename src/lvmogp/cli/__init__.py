"""The work behind the command line, and its words."""

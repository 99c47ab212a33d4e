"""The command line as ``python -m lvmogp``, for where the command itself is not on the path."""

from lvmogp.cli.app import main

if __name__ == "__main__":
    main()

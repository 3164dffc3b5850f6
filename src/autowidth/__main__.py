"""`python -m autowidth`, the same as the console script."""

from autowidth.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

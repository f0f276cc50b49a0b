"""`python -m postmaster`."""

from postmaster.cli import main

if __name__ == "__main__":
    main()

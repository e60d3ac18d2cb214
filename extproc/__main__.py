"""`python -m extproc` and the `kvsteer` command."""

from extproc.cli import main

if __name__ == "__main__":
    main()

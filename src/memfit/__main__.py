"""``python -m memfit`` is the command ``memfit``."""

from memfit.cli.main import run

if __name__ == "__main__":
    run()

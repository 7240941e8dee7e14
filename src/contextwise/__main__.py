"""The command ``contextwise``, also as ``python -m contextwise``, which is what ``torchrun -m contextwise`` starts."""

from contextwise.base.stopping import prepare_process


def main() -> None:
    """Run the command line and exit."""
    prepare_process()
    from contextwise.cli import main  # slow: signals are handled by now

    main()


if __name__ == "__main__":
    main()

"""``python -m contextwise``, which is also what ``torchrun -m contextwise`` starts."""

from contextwise.cli import main

if __name__ == "__main__":
    main()

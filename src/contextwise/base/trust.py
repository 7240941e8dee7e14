"""The user's choice about foreign Python code: that which comes with a model or tokenizer runs only if the user allows it."""


class Trust:
    """The user's choice, for the whole process."""

    remote_code = False


trust = Trust()

"""Whose Python code may run: not that which comes with a model or tokenizer, unless the user says so."""


class Trust:
    """The user's choice, for the whole process."""

    remote_code = False


trust = Trust()

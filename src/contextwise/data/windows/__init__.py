"""Windows of token ids over the documents of a corpus, for training and for measuring."""

from contextwise.data.windows.consecutive import Documents, Windows, stack

__all__ = ["Documents", "Windows", "stack"]

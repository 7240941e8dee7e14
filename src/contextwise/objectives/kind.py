"""The kinds of language model that examples are made for; a separate module, since standalone exports include it."""

from typing import Literal

Kind = Literal["decoder", "encoder", "encoder-decoder"]

"""The kinds of language model that examples are made for; a module of its own, since standalone exports carry it."""

from typing import Literal

Kind = Literal["decoder", "encoder", "encoder-decoder"]

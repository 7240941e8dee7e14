"""The kinds of language model that examples are made for; standalone exports include this module."""

from typing import Literal

Kind = Literal["decoder", "encoder", "encoder-decoder"]

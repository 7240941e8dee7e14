"""JSON as it comes from outside: parsed, and looked through for what is no text."""

import json
import re
from typing import Any

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(content: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON in UTF-8; says so as the end of a sentence, "is not ...".
    """
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({str(error)[:100]})") from None


def has_half_a_pair(value: Any, content: bytes) -> bool:
    """Whether a JSON value, parsed from ``content``, holds half of a surrogate pair, which is no text and has no UTF-8."""
    if not _SURROGATE.search(content):
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False

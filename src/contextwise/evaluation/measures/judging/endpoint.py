"""A judge behind an OpenAI-compatible endpoint: one request with its retries, and its errors in one sentence."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextwise.base.errors import ConfigError, DataError

if TYPE_CHECKING:
    from openai import OpenAI


class RequestFailed(Exception):
    """One request failed after all retries. Others may succeed."""


class EndpointDown(Exception):
    """Nothing listens at the endpoint."""


@dataclass(frozen=True)
class Endpoint:
    """A judge's endpoint, and the parameters of its requests.

    Attributes:
        url: base of the endpoint, such as ``http://localhost:8000/v1``.
        model: the judge's name there.
        key: of the endpoint; never written anywhere.
        timeout: seconds for one attempt.
        retries: further attempts after a timeout, a lost connection, 408, 409, 429 or 5xx; the waits between them grow from
            half a second to eight seconds, or follow the endpoint's Retry-After.
        parameters: of each request, beside model and messages.
    """

    url: str
    model: str
    key: str = field(default="none", repr=False)
    timeout: float = 120.0
    retries: int = 5
    parameters: dict[str, Any] = field(default_factory=lambda: {"temperature": 0, "max_tokens": 2048})

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--endpoint is {self.url!r}; give a URL such as http://localhost:8000/v1")
        if not self.timeout > 0:
            raise ConfigError(f"--timeout is {self.timeout}; give a positive number of seconds")

    def client(self) -> "OpenAI":
        """A client, which threads may share.

        Raises:
            ConfigError: the package is not installed.
        """
        try:
            from openai import OpenAI
        except ImportError:
            raise ConfigError(
                "the openai package is not installed; pip install 'contextwise[serve]'"
            ) from None
        return OpenAI(base_url=self.url, api_key=self.key, timeout=self.timeout, max_retries=self.retries)

    def ask(self, client: "OpenAI", messages: list[dict[str, str]]) -> dict[str, Any]:
        """The judge's answer.

        Returns:
            ``text`` (empty if there is none), ``finish_reason``, ``prompt_tokens`` and ``completion_tokens`` (None if the
            endpoint does not report them).

        Raises:
            ConfigError: the endpoint refuses the key, or knows neither the judge nor the path.
            EndpointDown: nothing listens.
            RequestFailed: this request was refused, or was not answered in time.
        """
        import openai

        try:
            answer = client.chat.completions.create(
                model=self.model,
                messages=messages,  # type: ignore[arg-type]
                extra_body=self.parameters,
            )
            # A server may answer 200 with a body that is none of the protocol's; the client lets it through.
            choice, usage = answer.choices[0], answer.usage
            if not isinstance(choice.message.content, str | None):
                raise TypeError(f"its content is no text but {str(choice.message.content)[:60]}")
            return {
                "text": choice.message.content or "",
                "finish_reason": choice.finish_reason,
                "prompt_tokens": None if usage is None else usage.prompt_tokens,
                "completion_tokens": None if usage is None else usage.completion_tokens,
            }
        except openai.APITimeoutError:
            raise RequestFailed(
                f"no answer within {self.timeout:g} s, {self.retries + 1} times; a longer --timeout may help"
            ) from None
        except openai.APIConnectionError as error:
            raise EndpointDown(_reason(error.__cause__ or error)) from None
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise ConfigError(
                f"{self.url} refuses the key (status {error.status_code}: {_reason(error)}); "
                "set OPENAI_API_KEY, or give --key-file"
            ) from None
        except openai.NotFoundError as error:
            raise ConfigError(
                f"{self.url} knows no judge {self.model!r}, or is not the endpoint's base, which mostly ends in /v1 "
                f"(status 404: {_reason(error)})"
            ) from None
        except openai.APIStatusError as error:
            raise RequestFailed(f"status {error.status_code}: {_reason(error)}") from None
        except (openai.OpenAIError, AttributeError, TypeError, IndexError, ValueError) as error:
            raise RequestFailed(f"the answer is not of the protocol ({_reason(error)})") from None


def read_key(file: Path | None) -> str:
    """The endpoint's key: from a file, else from ``OPENAI_API_KEY``; ``none`` for endpoints without keys.

    Raises:
        DataError: the file cannot be read, or is empty.
    """
    if file is None:
        return os.environ.get("OPENAI_API_KEY") or "none"
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the key file {file} cannot be read: {getattr(error, 'strerror', None) or 'no text'}"
        ) from None
    if not key or not key.isascii() or len(key.split()) != 1:
        raise DataError(f"the key file {file} must hold one key and nothing else")
    return key


def _reason(error: BaseException) -> str:
    body = getattr(error, "body", None)
    said = (body.get("message") or body.get("detail")) if isinstance(body, dict) else None
    return " ".join(str(said or error or type(error).__name__).split())[:200].rstrip(".")

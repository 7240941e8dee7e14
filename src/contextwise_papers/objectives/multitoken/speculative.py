"""Self-speculative decoding: heads 2..n propose tokens, and the next forward pass verifies them.

The loop is transformers' assisted decoding, for one text at a time (Stern et al. 2018, Section 3; Gloeckle et al. 2024,
Section 3.2). The candidates are the tokens that heads 2..n predicted at the last accepted position.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation.candidate_generator import CandidateGenerator


@dataclass
class Acceptance:
    """Counts of proposed and accepted tokens in one call of ``generate``."""

    steps: int = 0  # forward passes after that of the prompt
    drafted: int = 0  # verified proposals
    accepted: int = 0  # accepted proposals; each step outputs one token more than it accepts

    @property
    def fraction(self) -> float:
        """Accepted proposals as a fraction of verified ones; nan without any."""
        return self.accepted / self.drafted if self.drafted else float("nan")


class HeadCandidates(CandidateGenerator):
    """The proposals of heads 2..n, up to ``longest`` tokens of the whole text, for transformers' assisted decoding."""

    requires_model_outputs = True
    model_kwargs_overrides: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, longest: int) -> None:
        self.longest, self.acceptance = longest, Acceptance()

    def get_candidates(  # type: ignore[override]
        self, input_ids: Tensor, model_outputs: Any = None, n_last_matches: int = 0, **_: Any
    ) -> tuple[Tensor, None]:
        """The tokens with the proposals after them; the prompt alone before the first forward pass."""
        if model_outputs is None:
            return input_ids, None
        self.acceptance.steps += 1
        if model_outputs.future_logits is None:  # one head
            return input_ids, None
        room = self.longest - input_ids.shape[1] - 1  # the last token needs no verification
        proposals = model_outputs.future_logits[:, n_last_matches].argmax(-1)[:, :room]
        return torch.cat([input_ids, proposals.to(input_ids.device)], dim=1), None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """Count the proposals of a step and the accepted ones."""
        self.acceptance.drafted += scores.shape[1] - 1
        self.acceptance.accepted += int(num_matches)

"""Next-latent prediction (NextLat; Teoh et al., "Next-Latent Prediction Transformers Learn Compact World Models",
arXiv:2511.05963).

A small network, the latent dynamics model, predicts in training only the next hidden state from the current one and the next
token's embedding. Fed with its own predictions it rolls on over a horizon of d steps; at each step

- Eq. 3: the smooth L1 distance of the predicted to the real hidden state, which gets no gradient (stop-gradient);
- Eq. 4: the KL divergence from the token distribution of the real hidden state to that of the predicted one. The real one's
  distribution and the vocabulary head get no gradient;
- Eq. 5: the sum of the next-token loss and both, each averaged over the steps and weighted.

In packed rows a rollout ends with its document: steps to a state of another document have no loss, as in the paper. A document
begins with its end-of-text token, also where the documents of a row see each other.

Taken from descriptions of the paper and its code (the paper itself was not at hand): the three losses, hidden states after the
final norm, the residual network of three linear layers with GELU on the normalised concatenation of embedding and hidden state
(Appendix C). Chosen here: weights of 1, a horizon of 1 (the paper compares several), LayerNorm with a scale for the
normalisation, a width of D within the network, and a last layer of zeros: the first prediction is that nothing changes.

Shapes: B rows, T positions, D channels, V tokens in the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contextwise.models.masks import document_numbers

IGNORED = -100


class NextLatent(nn.Module):
    """The latent dynamics model and the losses of training; the model itself stays the stock one.

    Args:
        horizon: d, the steps of the rollout.
        regression: weight of the smooth L1 distance; ``divergence``: of the KL divergence; 0 leaves it out.
    """

    def __init__(self, model: Any, horizon: int = 1, regression: float = 1.0, divergence: float = 1.0) -> None:
        super().__init__()
        self.horizon, self.regression, self.divergence = horizon, regression, divergence
        width = model.get_output_embeddings().weight.shape[1]
        last = nn.Linear(width, width)
        self.dynamics = nn.Sequential(
            nn.LayerNorm(2 * width), nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), last
        )
        self.dynamics.apply(model._init_weights)
        nn.init.zeros_(last.weight)

    def predicted(self, hidden_BTD: Tensor, embedded_BTD: Tensor) -> Tensor:
        """The next hidden states, given the current ones and the embeddings of the next tokens."""
        return hidden_BTD + self.dynamics(torch.cat([embedded_BTD, hidden_BTD], -1))

    def forward(
        self, model: Any, hidden_BTD: Tensor, input_ids: Tensor, labels: Tensor, position_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Both losses, averaged over steps: their sums over positions with a next state, per label (a mean would change with
        the division of a step into micro-batches).

        Args:
            hidden_BTD: the input of the vocabulary head.
            labels: (B, T), the tokens after each position; -100 has no loss.
            position_ids: (B, T), where a document begins at 0.
        """
        document_BT = document_numbers(input_ids, position_ids, model.config)
        head_VD = model.get_output_embeddings().weight.detach()
        embedded_BTD = model.get_input_embeddings()(input_ids)
        steps = min(self.horizon, hidden_BTD.shape[1] - 1)
        distance = divergence = hidden_BTD.new_zeros(())
        labelled = labels.ne(IGNORED).sum().clamp(min=1)
        rolled = hidden_BTD
        for step in range(1, steps + 1):
            rolled = self.predicted(rolled[:, :-1], embedded_BTD[:, step:])
            real, known = hidden_BTD[:, step:].detach(), labels[:, step:].ne(IGNORED)
            known = known & (document_BT[:, step:] == document_BT[:, :-step])
            share = known / labelled
            distance = distance + (F.smooth_l1_loss(rolled, real, reduction="none").mean(-1) * share).sum()
            if self.divergence:
                divergence = divergence + (token_divergence(real, rolled, head_VD) * share).sum()
        losses = {"regression": self.regression * distance, "divergence": self.divergence * divergence}
        return {name: loss / max(steps, 1) for name, loss in losses.items()}


def token_divergence(real_BTD: Tensor, predicted_BTD: Tensor, head_VD: Tensor) -> Tensor:
    """KL divergence (B, T) from the head's distribution given the real hidden states to that given the predicted ones."""
    real, predicted = (F.linear(hidden, head_VD).float().log_softmax(-1) for hidden in (real_BTD, predicted_BTD))
    return F.kl_div(predicted, real, reduction="none", log_target=True).sum(-1)

"""Token order prediction (TOP; Zuhri, Fuadi and Aji, "Predicting the Order of Upcoming Tokens Improves Language Modeling",
arXiv:2508.19228).

One further unembedding on the last hidden state learns, in training only, in which order the upcoming tokens come. The target
score of a vocabulary item at position t is the window W minus the distance to its next occurrence after t, and minus infinity
for an item that does not occur within the window. The loss is ListNet's: the cross entropy between the softmax of the target
scores and that of the head. It is added to the next-token loss with weight 1, as in the paper.

Taken from descriptions of the paper and its code (the paper itself was not at hand): the scores, the loss, the single linear
head, the sum of the two losses. Chosen here: tokens after the end of a row are unknown, so windows end with the row (its code
reads W further tokens), and with the document where the documents of a row do not see each other; the head's initial values
are those of the family's linear layers.

The softmax of the scores gives the item at distance d the weight exp(1 - d) relative to the next token. Beyond a distance of
32 that is below 1e-13, far less than float32 resolves, so a window larger than 32 is computed as 32. That makes the targets
sparse: one score for each of the next W positions, and no matrix over the vocabulary.

Shapes: B rows, T positions, W distances, D channels, V tokens in the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from contextwise.models.losses import linear_cross_entropy

IGNORED = -100
FARTHEST = 32


class TokenOrder(nn.Module):
    """The head and the loss of training; the model itself stays the stock one.

    Args:
        window: W, how many tokens ahead an item is looked for.
        weight: of the loss, relative to the next-token loss.
    """

    def __init__(self, model: Any, window: int = 32, weight: float = 1.0) -> None:
        super().__init__()
        self.window, self.weight = window, weight
        vocabulary_VD = model.get_output_embeddings().weight
        self.head = nn.Linear(vocabulary_VD.shape[1], vocabulary_VD.shape[0], bias=False)
        model._init_weights(self.head)

    def forward(
        self, model: Any, hidden_BTD: Tensor, input_ids: Tensor, labels: Tensor, position_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The mean of the loss over the positions with a target.

        Args:
            labels: (B, T), the tokens after each position; -100 has no loss.
            position_ids: (B, T) of documents that do not see each other, each from 0; None: a row is one text.
        """
        scores_BTW = target_scores(labels, min(self.window, FARTHEST))
        if position_ids is not None:
            document_BT = position_ids.eq(0).cumsum(1)
            scores_BTW = scores_BTW.masked_fill(
                upcoming(document_BT, scores_BTW.shape[-1]) != document_BT[..., None], -torch.inf
            )
        known_BT = labels.ne(IGNORED)
        # A row without any target has a uniform softmax of nothing: its positions do not count.
        target_BTW = torch.where(known_BT[..., None], scores_BTW, 0.0).softmax(-1) * known_BT[..., None]
        total = order_loss(hidden_BTD, self.head.weight, labels, target_BTW)
        return {"order": self.weight * total / known_BT.sum().clamp(min=1)}


def upcoming(labels: Tensor, window: int) -> Tensor:
    """The tokens at distance 1 to W after each position: (B, T, W); -100 after the end of the row."""
    return nn.functional.pad(labels, (0, window - 1), value=IGNORED).unfold(1, window, 1)


def target_scores(labels: Tensor, window: int) -> Tensor:
    """The target scores (B, T, W) of the items at distances 1 to W: W - distance.

    Minus infinity where an item has occurred at a smaller distance already, and where there is no token.
    """
    items_BTW = upcoming(labels, window)
    same_BTWW = items_BTW[..., :, None] == items_BTW[..., None, :]
    repeated_BTW = same_BTWW.tril(-1).any(-1)
    distance_W = torch.arange(1, window + 1, device=labels.device)
    return (window - distance_W).float().masked_fill(repeated_BTW | items_BTW.eq(IGNORED), -torch.inf)


def order_loss(hidden_BTD: Tensor, head_VD: Tensor, labels: Tensor, target_BTW: Tensor) -> Tensor:
    """ListNet's loss, summed over positions: the cross entropy of the target distribution and the head's softmax.

    The cross entropy of a distribution p is that of the next token, plus the logit of the next token minus the mean logit under
    p. The first term is computed in pieces, without all logits in memory; the logits of the few items of p are dot products.
    """
    known_BT, items_BTW = labels.ne(IGNORED), upcoming(labels, target_BTW.shape[-1]).clamp(min=0)
    next_token = linear_cross_entropy(hidden_BTD, head_VD, labels)
    weights_BTW = -target_BTW
    weights_BTW[..., 0] += known_BT.float()
    mixed_ND = nn.functional.embedding_bag(
        items_BTW.flatten(0, 1), head_VD, per_sample_weights=weights_BTW.flatten(0, 1).to(head_VD), mode="sum"
    )
    return next_token + (hidden_BTD.flatten(0, 1).float() * mixed_ND.float()).sum()

"""Map tokens to chunks, and positions to the predicted context that they add.

The index convention (ContextLM, Section 2.2, with K = floor(T/w) complete chunks): chunk k contains the tokens at
positions k*w .. (k+1)*w-1 of a document; its predicted context is computed from the chunks before it; and position t adds
the predicted context of the chunk that its *target*, token t+1, belongs to. Positions before w-1 add ``c_init = h_0``.

Positions count from each document's first real token, so the convention also holds under left padding and for packed
documents: a chunk never contains tokens of two documents, and never padding.

Shapes: B rows, T positions of this call, K chunks completed in this call, P chunks completed in earlier calls.
"""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class ChunkLayout:
    """The positions of the chunks of one call, for rows that may differ in padding and in their documents."""

    ends_BK: torch.Tensor
    """Index, in this call, of the last token of each chunk; rows with fewer chunks are filled with 0."""
    valid_BK: torch.Tensor
    """Which entries of ``ends_BK`` are chunks."""
    first_BK: torch.Tensor
    """Position of each chunk's first token in its document: the rotary position of the chunk."""
    latest_BT: torch.Tensor
    """Number of chunks of this call that end at or before each position."""
    start_BT: torch.Tensor
    """Index, in this call, of the document's first token; negative if it was in an earlier call."""
    initial_BT: torch.Tensor
    """Positions that add c_init (fewer than w tokens of the document are known) and whose h_0 is in this call."""

    @classmethod
    def of(cls, positions_BT: torch.Tensor, real_BT: torch.Tensor, chunk_size: int) -> "ChunkLayout":
        """Lay out the chunks of a call.

        Args:
            positions_BT: position of each token in its document.
            real_BT: False for padding.
            chunk_size: w.
        """
        index_BT = torch.arange(positions_BT.shape[1], device=positions_BT.device).expand_as(positions_BT)
        is_end_BT = ((positions_BT + 1) % chunk_size == 0) & real_BT
        latest_BT = is_end_BT.cumsum(1)
        most = int(latest_BT[:, -1].max())
        # Scatter each end to its rank; positions that end no chunk go to an extra column, which is dropped.
        column_BT = torch.where(is_end_BT, latest_BT - 1, most)
        ends_BK = index_BT.new_zeros(index_BT.shape[0], most + 1).scatter_(1, column_BT, index_BT)[:, :most]
        valid_BK = torch.arange(most, device=index_BT.device) < latest_BT[:, -1:]
        start_BT = index_BT - positions_BT
        return cls(
            ends_BK=ends_BK,
            valid_BK=valid_BK,
            first_BK=(positions_BT.gather(1, ends_BK) - (chunk_size - 1)).clamp(min=0),
            latest_BT=latest_BT,
            start_BT=start_BT,
            initial_BT=(positions_BT + 1 < chunk_size) & (start_BT >= 0) & real_BT,
        )

    def attention(self, end_BP: torch.Tensor, column_BK: torch.Tensor, past: Any) -> torch.Tensor:
        """The attention mask of the chunks of this call: (B, 1, K, P) booleans.

        Args:
            end_BP: index, from the first token of all calls, of the last token of each chunk with keys, those of this
                call included; -1 for no chunk.
            column_BK: the columns of the chunks of this call.
            past: number of tokens in earlier calls.
        """
        start_BK = past + self.start_BT.gather(1, self.ends_BK)
        return chunk_attention(past + self.ends_BK, start_BK, end_BP, column_BK)


def chunk_attention(
    end_BK: torch.Tensor, start_BK: torch.Tensor, end_BP: torch.Tensor, column_BK: torch.Tensor
) -> torch.Tensor:
    """The attention mask under which a chunk sees the chunks of its document up to itself: (B, 1, K, P) booleans.

    Every query sees at least its own column, so that no softmax is empty (entries that are no chunk are never used).

    Args:
        end_BK, start_BK: indices of the last token of each query, and of the first token of its document.
        end_BP: index of the last token of each key, -1 for no chunk.
        column_BK: which of the P columns is the query's own.
    """
    end_B1P = end_BP[:, None, :]
    own_BKP = column_BK[..., None] == torch.arange(end_BP.shape[1], device=end_BP.device)
    allowed_BKP = (end_B1P >= 0) & (end_B1P >= start_BK[..., None]) & (end_B1P <= end_BK[..., None])
    return (allowed_BKP | own_BKP)[:, None]

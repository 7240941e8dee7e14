"""Proxies of contexts: noisy codes of a sentence's own words, for corpora that have no contexts (CUE, Section 4.2).

Shapes: B sentences, T positions, V tokens of the vocabulary, P channels of the code, W channels of e_cue.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import ModelOutput

from contextwise.base.errors import ConfigError
from contextwise.models.cue.config import ProxyConfig, UnigramConfig
from contextwise.models.losses import IGNORED


class UnigramAutoencoder(PreTrainedModel):
    """Reconstructs a sentence's unigram distribution from a code of a few numbers (Section 4.2.1).

    Layers V x 128 x 16 x 128 x V as printed, with a ReLU after each but the last, and a softmax. The loss is the divergence
    KL(P~ || F(P~)) of a sentence, in nats. Eq. 6 as printed has the opposite order, which is infinite for every sentence:
    P~ is 0 for all words that are not in the sentence, and a softmax is never 0.
    """

    config: UnigramConfig
    config_class = UnigramConfig
    base_model_prefix = ""
    main_input_name = "labels"
    _no_split_modules: list[str] = []  # noqa: RUF012

    def __init__(self, config: UnigramConfig) -> None:
        super().__init__(config)
        down = [config.vocab_size, *config.widths]
        self.down = nn.ModuleList(nn.Linear(*sizes) for sizes in pairwise(down))
        self.up = nn.ModuleList(nn.Linear(*sizes) for sizes in pairwise(reversed(down)))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize weights that preserve the scale of their inputs; the first layer's columns are embeddings.

        With torch's default first layer (uniform within V^-0.5), six of the 16 channels of the code stayed at zero on news
        text, and the loss was higher.
        """
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, std=1.0 if module is self.down[0] else module.in_features**-0.5)
            init.zeros_(module.bias)

    def get_output_embeddings(self) -> nn.Module:
        return self.up[-1]

    def bag(self, labels: torch.Tensor) -> torch.Tensor:
        """Eq. 5: the share of each token among a sentence's tokens, (B, V) float32.

        Args:
            labels: (B, T) tokens; -100 and end-of-text, which is not a word, are not counted. A sentence without other
                tokens has a row of zeros.
        """
        words_BT = labels.ne(IGNORED)
        if self.config.eos_token_id is not None:
            words_BT = words_BT & labels.ne(self.config.eos_token_id)
        bags_BV = torch.zeros(len(labels), self.config.vocab_size, device=labels.device)
        bags_BV.scatter_add_(1, labels.clamp(min=0), words_BT.float())
        return bags_BV / words_BT.sum(1, keepdim=True).clamp(min=1)

    def encode(self, bags: torch.Tensor) -> torch.Tensor:
        """The codes (B, P) of unigram distributions (B, V)."""
        code = bags.to(self.dtype)
        for layer in self.down:
            code = layer(code).relu()
        return code

    def log_probabilities(self, codes: torch.Tensor) -> torch.Tensor:
        """Decode codes (B, P) to the logarithms of distributions, (B, V), float32."""
        hidden = codes
        for layer in self.up[:-1]:
            hidden = layer(hidden).relu()
        return self.up[-1](hidden).float().log_softmax(-1)

    def divergences(self, labels: torch.Tensor) -> torch.Tensor:
        """KL(P~ || F(P~)) of each sentence, nats: (B, T) to (B,)."""
        bags_BV = self.bag(labels)
        log_p_BV = self.log_probabilities(self.encode(bags_BV))
        return torch.special.xlogy(bags_BV, bags_BV).sum(1) - (bags_BV * log_p_BV).sum(1)

    def forward(self, labels: torch.Tensor, **_: Any) -> ModelOutput:
        """``loss``, the mean divergence of sentences (B, T) in nats, and ``logits``, (B, V) log-probabilities."""
        log_p_BV = self.log_probabilities(self.encode(self.bag(labels)))
        return ModelOutput(loss=self.divergences(labels).mean(), logits=log_p_BV)


class ProxyEncoder(PreTrainedModel):
    """Computes a replacement of e_cue from the words to be predicted (Section 4.2.2).

    ::

        a = F(P~) + sigma * noise      # Eq. 7: F, the frozen encoder half of the autoencoder
        a = a / |a|                    # Eq. 8
        e_cue = project(a)
    """

    config: ProxyConfig
    config_class = ProxyConfig
    base_model_prefix = ""
    main_input_name = "labels"
    _no_split_modules: list[str] = []  # noqa: RUF012

    def __init__(self, config: ProxyConfig) -> None:
        super().__init__(config)
        self.autoencoder = UnigramAutoencoder(config.autoencoder)
        self.project = nn.Linear(config.autoencoder.code_width, config.width)
        self.autoencoder.requires_grad_(False)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as in transformers, and freeze the autoencoder again, which a checkpoint does not record."""
        loaded = super().from_pretrained(*args, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded).autoencoder.requires_grad_(False)
        return loaded

    @classmethod
    def from_autoencoder(cls, autoencoder: UnigramAutoencoder, width: int, noise: float) -> "ProxyEncoder":
        """Create a proxy encoder with a new projection after a trained autoencoder, which is frozen and shared."""
        proxy = cls(ProxyConfig(autoencoder.config, width, noise))
        proxy.autoencoder = autoencoder.requires_grad_(False)
        return proxy

    def forward(self, labels: torch.Tensor, noise: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
        """e_cue of each sentence, (B, W); arguments as for :meth:`proxies`."""
        return self.project(self.proxies(labels, noise).to(self.project.weight.dtype))

    def proxies(self, labels: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Normalized noisy codes, (B, P).

        Args:
            labels: (B, T), the tokens to predict.
            noise: (B, P) standard normal numbers, scaled by the configured sigma; not needed if sigma is 0.

        Raises:
            ConfigError: sigma is positive and no noise is given: a proxy would contain more information than in training.
        """
        with torch.no_grad():
            code_BP = self.autoencoder.encode(self.autoencoder.bag(labels)).float()
        if self.config.noise:
            if noise is None:
                raise ConfigError(
                    f"the proxies have a noise of {self.config.noise:g}, but none is given; pass proxy_noise, standard "
                    f"normal numbers of shape ({len(code_BP)}, {code_BP.shape[1]})"
                )
            code_BP = code_BP + self.config.noise * noise.to(code_BP)
        return nn.functional.normalize(code_BP, dim=-1)

    def without_words(self, rows: int) -> torch.Tensor:
        """e_cue without words, (rows, W): the projection of the zero vector, which is the mean of pure noise."""
        return self.project.bias.expand(rows, -1)

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
    """Rebuilds a sentence's unigram distribution from a code of a few numbers (Section 4.2.1).

    Layers V x 128 x 16 x 128 x V as printed, with a ReLU behind each but the last, and a softmax. The loss is the divergence
    KL(P~ || F(P~)) of a sentence, in nats. Eq. 6 as printed has the two the other way around, which is infinite
    for every sentence: P~ is 0 for all words that the sentence lacks, and a softmax is 0 for none.
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
        """Weights that keep the size of what they read. The first layer reads a mean of its columns: they start as embeddings.

        With torch's own small weights there (uniform within V^-0.5), six of the 16 channels of the code stayed at zero on
        news, and the loss was higher.
        """
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, std=1.0 if module is self.down[0] else module.in_features**-0.5)
            init.zeros_(module.bias)

    def get_output_embeddings(self) -> nn.Module:
        return self.up[-1]

    def bag(self, labels: torch.Tensor) -> torch.Tensor:
        """Eq. 5: the share of each token among a sentence's tokens, (B, V) float32.

        Args:
            labels: (B, T) tokens. Those of -100 count for nothing, nor does end-of-text, which is no word; a sentence without
                any other has a row of zeros.
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
        """The distributions that codes (B, P) stand for: (B, V) logarithms, float32."""
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
    """A stand-in for e_cue, made of the words that are to be predicted (Section 4.2.2).

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
        """As in any transformers model; the autoencoder is frozen again, as no checkpoint says."""
        loaded = super().from_pretrained(*args, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded).autoencoder.requires_grad_(False)
        return loaded

    @classmethod
    def from_autoencoder(cls, autoencoder: UnigramAutoencoder, width: int, noise: float) -> "ProxyEncoder":
        """A fresh projection behind a trained autoencoder, which is frozen here and shared, not copied."""
        proxy = cls(ProxyConfig(autoencoder.config, width, noise))
        proxy.autoencoder = autoencoder.requires_grad_(False)
        return proxy

    def forward(self, labels: torch.Tensor, noise: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
        """e_cue of each sentence, (B, W); arguments as :meth:`proxies` takes them."""
        return self.project(self.proxies(labels, noise).to(self.project.weight.dtype))

    def proxies(self, labels: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Normalised noisy codes, (B, P).

        Args:
            labels: (B, T), the tokens to predict.
            noise: (B, P) standard normal numbers, scaled here by the configured sigma; not needed where that is 0.

        Raises:
            ConfigError: sigma is positive and there is no noise: a proxy would say more than it did in training.
        """
        with torch.no_grad():
            code_BP = self.autoencoder.encode(self.autoencoder.bag(labels)).float()
        if self.config.noise:
            if noise is None:
                raise ConfigError(
                    f"the proxies have a noise of {self.config.noise:g}, but none was drawn; give proxy_noise, standard "
                    f"normal numbers of shape ({len(code_BP)}, {code_BP.shape[1]})"
                )
            code_BP = code_BP + self.config.noise * noise.to(code_BP)
        return nn.functional.normalize(code_BP, dim=-1)

    def without_words(self, rows: int) -> torch.Tensor:
        """e_cue where nothing is known, (rows, W): the image of the zero vector, which is the mean of pure noise."""
        return self.project.bias.expand(rows, -1)

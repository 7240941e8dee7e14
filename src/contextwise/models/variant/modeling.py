"""A variant as a model: a stock backbone with training losses of its own, or a causal language model of the user's class.

Shapes: B rows, T positions, D channels.
"""

import contextlib
import copy
import dataclasses
import inspect
import math
import unittest.mock
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.base.plugins import is_ours
from contextwise.base.progress import say_once
from contextwise.models.building import pair_stock
from contextwise.models.composition import ComposedConfig
from contextwise.models.losses import evaluation_mode, final_hidden_states, is_linear
from contextwise.models.matrices import ties_of
from contextwise.models.spec import build_model, meta_model
from contextwise.models.variant.code import known_code, reason, run_code, unknown_name


class VariantConfig(ComposedConfig):
    """The stock model that a variant starts from, and the user's code: a class or function ``name`` with ``options``.

    The code is found by ``sha256``, of the content of the Python ``file``.
    """

    model_type = "variant"

    def __init__(
        self,
        backbone_config: PreTrainedConfig | dict[str, Any] | None = None,
        file: str = "",
        name: str = "",
        options: dict[str, Any] | None = None,
        sha256: str = "",
        **kwargs: Any,
    ) -> None:
        self._take_backbone(backbone_config, kwargs)
        self.file, self.name, self.options, self.sha256 = file, name, options or {}, sha256
        super().__init__(**kwargs)

    @property
    def source(self) -> str:
        """The variant as a recipe names it, for messages."""
        return f"{self.file}:{self.name}"


class VariantForCausalLM(PreTrainedModel, GenerationMixin):
    """A variant of the user's own around or in place of a stock model; all calls are passed on to ``model``.

    ``part`` has the losses of training alone, or is None: the model is then that of the user's class or function.
    """

    config_class = VariantConfig
    config: Any
    base_model_prefix = "body"
    supports_gradient_checkpointing = True
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: VariantConfig) -> None:
        super().__init__(config)
        backbone = copy.deepcopy(config.backbone_config)  # the user's code may change it
        backbone._attn_implementation = config._attn_implementation
        module = run_code(config.sha256, config.file)
        own = getattr(module, config.name, None)
        if not callable(own):
            named = [name for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__]
            raise unknown_name(config.file, config.name, named)
        self.part: nn.Module | None = None
        try:
            if isinstance(own, type) and issubclass(own, PreTrainedModel):
                self.model = self._of_class(own, backbone)
            elif isinstance(own, type) and issubclass(own, nn.Module):
                self.model = build_model(backbone)
                pair_stock(self.model)
                self.part = own(self.model, **config.options)
                _keep_initial_values(self.part)
            else:
                stock = build_model(backbone)
                pair_stock(stock)
                before = set(stock.modules())
                self.model = own(stock, **config.options)
                _keep_initial_values(self.model, before)
        except ContextwiseError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{config.source} cannot be built: {reason(error, config.file)}") from error
        head = self.model.get_output_embeddings() if isinstance(self.model, PreTrainedModel) else None
        if head is None:
            raise ConfigError(
                f"{config.source} is no causal language model: it gives {type(self.model).__name__} without a vocabulary head "
                "(get_output_embeddings)"
            )
        ties = ties_of(self)
        self._tied_weights_keys = ties  # saved once
        self.post_init()
        known: Any = self.all_tied_weights_keys  # and not missing in a saved model, beside a head that is tied itself
        known |= {name: known.get(first, first) for name, first in ties.items()}

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as transformers does, and compute again what the user's code keeps outside of the saved state."""
        loaded = super().from_pretrained(*args, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded)._compute_unsaved()
        return loaded

    def _compute_unsaved(self) -> None:
        """Give buffers that are not saved, and tensors that are no buffers, the values of a model that is built anew.

        transformers loads into a model without values, and knows these of its own classes alone.
        """
        stock = {name for name, _ in meta_model(self.config.backbone_config).named_buffers()}
        unsaved = unsaved_values(self.model, stock)
        if not unsaved:
            return
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            modules = dict(type(self)(copy.deepcopy(self.config)).model.named_modules())
        for name, module, key in unsaved:
            value, old = getattr(modules[name], key), getattr(module, key)
            setattr(module, key, value.to(self.device if old.is_meta else old.device, old.dtype))

    def init_weights(self) -> None:
        """Tie the weights; the parts have initialized themselves."""
        self.tie_weights(recompute_mapping=False)

    def _adjust_bias(self, output_embeddings: Any, input_embeddings: Any) -> None:
        """Nothing where a layer of the user's is tied: transformers pads its bias as a vocabulary head's."""
        if output_embeddings is self.get_output_embeddings():
            super()._adjust_bias(output_embeddings, input_embeddings)

    def _of_class(self, own: type[PreTrainedModel], backbone: Any) -> Any:
        expected = own.config_class
        if expected is None or not isinstance(backbone, expected):
            raise ConfigError(
                f"{self.config.source} takes the configuration {getattr(expected, '__name__', None)}, but the recipe's family "
                f"has {type(backbone).__name__}; set another model.family"
            )
        stock = {name for name, _ in meta_model(backbone).named_modules()}
        drawn = PreTrainedModel.init_weights

        def init_weights(model: Any) -> None:
            drawn(model)
            if type(model) is own:
                _keep_initial_values(model, {module for name, module in model.named_modules() if name in stock})
                # A model that is not complete yet is drawn in the end.
                with contextlib.suppress(AttributeError):
                    pair_stock(model)

        with unittest.mock.patch.object(PreTrainedModel, "init_weights", init_weights):
            model = own(backbone, **self.config.options)
        _keep_initial_values(model, {module for name, module in model.named_modules() if name in stock})
        return model

    @property
    def own_forward(self) -> bool:
        """Whether the logits are trained as they are: model, base model or head are not run by stock methods without hooks."""
        model, head = self.model, self.model.get_output_embeddings()
        stock = all(_is_stock(type(each).forward.__module__) for each in (model, model.base_model))
        parts = (model, model.base_model)
        changed = any("forward" in vars(each) or each._forward_hooks or each._forward_pre_hooks for each in parts)
        return not stock or changed or not is_linear(head)

    @property
    def own_losses(self) -> Any:
        """The user's function of further losses in training; None without one."""
        return getattr(self.model, "training_losses", None) if self.part is None else self.part.forward

    @property
    def reads_logits(self) -> bool:
        """Whether the user's losses have an argument ``logits``."""
        return self.own_losses is not None and "logits" in inspect.signature(self.own_losses).parameters

    def training_losses(
        self, hidden_BTD: Tensor, input_ids: Tensor, labels: Tensor, **known: Tensor | None
    ) -> dict[str, Tensor]:
        """The losses of training beside the next-token loss: name -> mean over the targets.

        What is ``known`` further, ``position_ids`` and ``logits`` (B, T, V), is given to code with an argument of that name.
        """
        own = self.own_losses
        if own is None:
            return {}
        further = {name: value for name, value in known.items() if name in inspect.signature(own).parameters}
        if self.part is not None:
            return self.part(self.model, hidden_BTD, input_ids, labels, **further)
        return own(hidden_BTD, input_ids, labels, **further)

    def hidden_states(self, **inputs: Any) -> Tensor:
        """The input (B, T, D) of the vocabulary head; a TypeError where only the user's forward pass knows the logits."""
        if self.own_forward:
            raise TypeError("the logits are those of the variant's own forward pass")
        return final_hidden_states(self.model, **inputs)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the model; arguments and output are its own. A model that computes no loss of ``labels`` gets transformers'."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        given |= {"past_key_values": past_key_values, "inputs_embeds": inputs_embeds}
        of_loss: dict[str, Any] = {
            name: kwargs.pop(name) for name in ("shift_labels", "num_items_in_batch") if name in kwargs
        }
        if "labels" in inspect.signature(self.model.forward).parameters:
            given |= {"labels": labels}
            kwargs |= of_loss if self.accepts_loss_kwargs else {}
        out: Any = self.model(**{name: value for name, value in given.items() if value is not None}, **kwargs)
        if labels is not None and isinstance(out, ModelOutput) and getattr(out, "loss", None) is None:
            loss = self.loss_function(out.logits, labels, out.logits.shape[-1], **of_loss)
            out = dataclasses.replace(out, loss=loss)  # type: ignore[type-var]
        if kwargs.get("use_cache") is False and getattr(out, "past_key_values", None) is not None:
            out.past_key_values = None  # of code that always keeps one
        return out

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether the loss is divided by ``num_items_in_batch``; transformers' Trainer asks, as the user's code may not."""
        parameters = inspect.signature(self.model.forward).parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        return "labels" not in parameters or takes_any or "num_items_in_batch" in parameters

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as transformers does, without a cache where the user's code computes other logits over one."""
        given: Any = kwargs.get("generation_config")
        wanted = kwargs.get("use_cache", getattr(given or self.generation_config, "use_cache", True))
        if wanted is not False and not self.reads_cache:
            say_once(
                f"note: {self.config.source} keeps no cache, or computes other logits over one than without it, so it "
                "generates without one, in more time"
            )
            if given is None:
                kwargs["use_cache"] = False
            else:
                kwargs["generation_config"] = copy.deepcopy(given)
                kwargs["generation_config"].use_cache = False
                kwargs.pop("use_cache", None)
        return super().generate(*args, **kwargs)

    @property
    def reads_cache(self) -> bool:
        """Whether a token behind a cache has the logits that it has in the whole text, as far as eight tokens show."""
        ids_1T = torch.arange(1, 9, device=self.device)[None] % self.config.vocab_size
        try:
            with evaluation_mode(self), torch.no_grad():
                whole_V = self(ids_1T).logits[0, -1]
                known = self(ids_1T[:, :-1], use_cache=True).past_key_values
                last_V = self(ids_1T[:, -1:], past_key_values=known, use_cache=True).logits[0, -1]
        except Exception:  # of the user's code, which need not know a cache
            return False
        rounding = math.sqrt(torch.finfo(whole_V.dtype).eps) * whole_V.abs().max()
        return bool((whole_V - last_V).abs().max() <= rounding)

    @property
    def body(self) -> nn.Module:
        """The model without its vocabulary head: ``model.base_model``."""
        return self.model.base_model

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.model.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.model.set_output_embeddings(new_embeddings)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize those of the model, whose configuration is a copy of its own."""
        embeddings = self.model.resize_token_embeddings(*args, **kwargs)
        self.config.vocab_size = self.vocab_size = embeddings.num_embeddings  # transformers sets both
        return embeddings

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Save as transformers does, with the variant's code: the stock model alone where the rest is for training."""
        if self.part is not None:
            self.model.save_pretrained(save_directory, **kwargs)
            return
        super().save_pretrained(save_directory, **kwargs)
        (Path(save_directory) / self.config.file).write_bytes(known_code(self.config.sha256, self.config.file))


def unsaved_values(model: nn.Module, stock: Collection[str]) -> list[tuple[str, nn.Module, str]]:
    """Name, module and attribute of each tensor of a model that its saved state lacks, but for the buffers ``stock``."""
    found = []
    for name, module in model.named_modules():
        buffers = [key for key in module._non_persistent_buffers_set if f"{name}.{key}".lstrip(".") not in stock]
        tensors = [key for key, value in vars(module).items() if isinstance(value, Tensor)]
        found += [(name, module, key) for key in (*buffers, *tensors) if getattr(module, key) is not None]
    return found


def _keep_initial_values(model: Any, stock: set[nn.Module] | None = None) -> None:
    """Mark the modules that are the variant's own: a paired initialization leaves their values as the user's code set them."""
    module: Any
    for module in model.modules() if isinstance(model, nn.Module) else ():
        if stock is None or module not in stock:
            module.keeps_initial_values = True


def _is_stock(module: str) -> bool:
    """Whether a module is of transformers or of this distribution, and not the user's own."""
    return module.startswith("transformers.") or is_ours(module)

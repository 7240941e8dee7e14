"""Refuse to train a model whose predictions see later tokens."""

from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.base.plugins import is_ours
from contextwise.training.recipe import Recipe

SHORT = 14
"""The longest row of the measurement itself."""
_CHECKED: set[str] = set()


def refuse_leaking_variant(recipe: Recipe) -> None:
    """:func:`refuse_leak` for a recipe whose model is the user's own, or of another package; other models are known."""
    variant, kind = getattr(recipe.model, "variant", None), type(recipe.model)
    if variant is not None:
        refuse_leak(recipe, f"{variant.name} in {variant.file}")
    elif not is_ours(kind.__module__) and recipe.objective.kind == "decoder":
        refuse_leak(recipe, f"the model of {kind.__module__}.{kind.__name__}")


def refuse_leak(recipe: Recipe, what: str) -> None:
    """Measure whether later tokens change earlier predictions of a recipe's model, before it is trained; once for each model.

    One of the user's own, or of another package, is also measured on rows as long as those of its training; a variant is taken
    one training step. ``what`` names the model in the message.
    """
    from contextwise.evaluation.measures.causality.effects import LEAK, NONE
    from contextwise.evaluation.measures.causality.perturbations import (
        LONGEST,
        future_tokens,
        gradients,
        measure_causality,
    )
    from contextwise.models.spec import spec_of
    from contextwise.models.variant.code import reason
    from contextwise.models.variant.modeling import VariantForCausalLM
    from contextwise.training.inputs import TrainingInputs
    from contextwise.training.model import starting_model

    key = recipe.model_dump_json(include={"data", "model", "objective"})
    if key in _CHECKED:
        return
    model = starting_model(recipe, TrainingInputs.open(recipe).config)
    context = min(recipe.data.context, LONGEST)
    own = isinstance(model, VariantForCausalLM)
    stock = type(model).__module__.startswith("transformers.")
    try:
        if own:
            spec_of(model.config).flops_per_example(model, context)
        effects = list(measure_causality(model, checks=[future_tokens, gradients]).effects)
        if (own or not (stock or is_ours(type(model).__module__))) and context > SHORT:
            checks = [future_tokens]  # at both ends of the rows
            effects += measure_causality(model, lengths=[context], chunk_size=context // 2, checks=checks).effects
    except ContextwiseError:
        raise
    except Exception as error:
        if not own:
            raise
        raise ConfigError(f"{what} fails when it reads random tokens: {reason(error, model.config.file)}") from error
    for effect in effects:
        if effect.outcome == LEAK:
            raise ConfigError(
                f"{what} leaks: later tokens change its earlier predictions, so its loss means nothing ({effect.sentence})"
            )
    for effect in effects:
        if effect.name == "future tokens" and effect.outcome != NONE:
            raise ConfigError(f"{what} cannot be checked for leaks: {effect.sentence}")
    _CHECKED.add(key)

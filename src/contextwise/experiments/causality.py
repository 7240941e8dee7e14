"""Refuse to train a model whose predictions see later tokens."""

from contextwise.base.errors import ConfigError
from contextwise.training.recipe import Recipe

_CHECKED: set[str] = set()


def refuse_leaking_variant(recipe: Recipe) -> None:
    """:func:`refuse_leak` for a recipe whose model is the user's own; other models are known."""
    variant = getattr(recipe.model, "variant", None)
    if variant is not None:
        refuse_leak(recipe, f"{variant.name} in {variant.file}")


def refuse_leak(recipe: Recipe, what: str) -> None:
    """Measure whether later tokens change earlier predictions of a recipe's model, before it is trained; once for each model.

    Args:
        what: the model, in the message.

    Raises:
        ConfigError: they do, or it cannot be measured.
    """
    from contextwise.evaluation.measures.causality import perturbations
    from contextwise.training.inputs import TrainingInputs
    from contextwise.training.model import starting_model

    key = recipe.model_dump_json(include={"data", "model", "objective"})
    if key in _CHECKED:
        return
    measured = perturbations.measure_causality(starting_model(recipe, TrainingInputs.open(recipe).config))
    leaks = [measured[name] for name in ("future tokens", "gradients") if measured[name].outcome == perturbations.LEAK]
    if leaks:
        raise ConfigError(
            f"{what} leaks: later tokens change its earlier predictions, so its loss means nothing ({leaks[0].sentence})"
        )
    if measured["future tokens"].outcome != perturbations.NONE:
        raise ConfigError(f"{what} cannot be checked for leaks: {measured['future tokens'].sentence}")
    _CHECKED.add(key)

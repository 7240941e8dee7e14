"""AlpacaEval's length-controlled win rate (Dubois et al. 2024), by its own package."""

import importlib
from collections.abc import Iterable
from typing import Any

from contextwise.base.errors import ConfigError
from contextwise.evaluation.measures.judging.files import ModelAnswers
from contextwise.evaluation.measures.judging.results import Row, comparisons


def check_package(against: ModelAnswers | None) -> Any:
    """The package's regression.

    Raises:
        ConfigError: it is not installed, or it does not apply.
    """
    if against is None or not against.questions:
        raise ConfigError(
            "--length-controlled is for AlpacaEval's outputs, compared with --against a reference; leave it out"
        )
    try:
        return importlib.import_module("alpaca_eval.metrics.glm_winrate")
    except ImportError:
        raise ConfigError(
            "--length-controlled needs the alpaca_eval package, which is not installed; pip install alpaca_eval"
        ) from None


def length_controlled(ours: ModelAnswers, theirs: ModelAnswers, rows: Iterable[Row]) -> float:
    """AlpacaEval's length-controlled win rate of ``ours``, from 0 to 1, by the alpaca_eval package's own regression.

    The package looks the difficulty of the instructions up by their number in the published list, which ``theirs`` must follow.

    Raises:
        ConfigError: the package is not installed, or cannot get its table of difficulties from the Hub.
    """
    regression = check_package(theirs)
    outcomes, _ = comparisons(rows, ours.model)
    table = [
        {
            "index": index,
            "instruction": question.id,
            "output_1": theirs.texts[question.id][0],
            "output_2": ours.texts[question.id][0],
            "generator_1": theirs.model,
            "generator_2": ours.model,
            "annotator": "contextwise",
            "preference": 1.0 + outcomes[question.id, 1],
        }
        for index, question in enumerate(theirs.questions)
        if (question.id, 1) in outcomes
    ]
    try:
        result = regression.get_length_controlled_winrate(
            regression.pd.DataFrame(table).set_index("index"), save_weights_dir=None
        )
    except Exception as error:  # of many classes: the package's, the Hub's, scikit-learn's
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"alpaca_eval gives no length-controlled win rate ({reason}); it needs its file df_gamed.csv from the Hub, and "
            "AlpacaEval's instructions in their published order; leave --length-controlled out"
        ) from None
    return float(result["length_controlled_winrate"]) / 100

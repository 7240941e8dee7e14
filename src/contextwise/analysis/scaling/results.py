"""A law as plain values, for JSON."""

from typing import Any

import numpy as np

from contextwise.analysis.scaling.analysis import Analysis


def analysis_dict(analysis: Analysis) -> dict[str, Any]:
    """The forms compared, the numbers of the chosen one, and every residual."""
    found = analysis.found
    columns = ("context", "parameters", "tokens", "flops", "loss")
    return {
        "form": analysis.chosen.form.name,
        "formula": analysis.chosen.form.formula,
        "confidence": analysis.confidence,
        "resamples": len(analysis.ensemble.theta),
        "points": len(found),
        "left_out": found.left_out,
        "runs": len(found.runs),
        "sizes": dict(zip(found.sizes, found.size_parameters.tolist(), strict=True)),
        "contexts": np.unique(found.context).tolist(),
        "parameters": {name: value.to_dict() for name, value in analysis.parameters().items()},
        "at_bounds": sorted(analysis.at_bounds),
        "forms": [
            {
                "form": score.form.name,
                "formula": score.form.formula,
                "numbers": len(score.form.parameters),
                "seen": score.fitted,
                "unseen_runs": score.error,
                "unseen_budgets": score.held_out_budgets,
                "in_intervals": any(score is one for one in analysis.tied),
            }
            for score in analysis.scores
        ],
        "residuals": [
            {
                "run": found.runs[found.run[i]],
                "size": found.sizes[found.size[i]],
                **{name: float(getattr(found, name)[i]) for name in columns},
                "residual": float(analysis.residuals[i]),
            }
            for i in range(len(found))
        ],
    }

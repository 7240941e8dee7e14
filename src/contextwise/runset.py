"""Run sets: training runs that belong together (arms x seeds x a grid), their costs, states and executors.

Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.experiments.cost import RunCost, cost_of
    from contextwise.experiments.executors import ExecutorSettings, train_run
    from contextwise.experiments.folder import PlannedRun, Question, RunSetFolder, RunState
    from contextwise.experiments.grid import size_name
    from contextwise.experiments.launchers import AnyExecutor
    from contextwise.experiments.run_set import Arm, RecipeValues, Run, RunSet, RunSetSettings

__all__ = ["AnyExecutor", "Arm", "ExecutorSettings", "PlannedRun", "Question", "RecipeValues", "Run", "RunCost"]
__all__ += ["RunSet", "RunSetFolder", "RunSetSettings", "RunState", "cost_of", "size_name", "train_run"]
__getattr__, __dir__ = lazy_exports(__name__)

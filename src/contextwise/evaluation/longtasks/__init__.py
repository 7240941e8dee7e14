"""Long tasks: questions on long documents from files of LongBench's and L-Eval's form, at several visible contexts.

ContextLM, Section 4.1 ("Block Size") and Table 5: inputs beyond the trained context, read with dynamic NTK.
"""

from contextwise.evaluation.longtasks.formats import Item, read_items
from contextwise.evaluation.longtasks.metrics import score
from contextwise.evaluation.longtasks.running import evaluate_long_tasks
from contextwise.evaluation.longtasks.settings import Settings

__all__ = ["Item", "Settings", "evaluate_long_tasks", "read_items", "score"]

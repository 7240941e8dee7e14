"""Long tasks: questions on long documents from files of LongBench's and L-Eval's form, at several visible contexts.

ContextLM, Section 4.1 ("Block Size") and Table 5: inputs beyond the trained context, read with dynamic NTK.
"""

from contextwise.evaluation.measures.long_tasks.formats import Item, read_items
from contextwise.evaluation.measures.long_tasks.metrics import score
from contextwise.evaluation.measures.long_tasks.running import evaluate_long_tasks
from contextwise.evaluation.measures.long_tasks.settings import Settings

__all__ = ["Item", "Settings", "evaluate_long_tasks", "read_items", "score"]

"""The verb ``contextwise measure entropy``: a measurement, its analysis and its page."""

import sys

from contextwise.base.files import relative_to_here
from contextwise.cli.common import show_line, show_values
from contextwise.cli.measures import verb
from contextwise.report import say
from contextwise_papers.intrinsic_entropy.entropy import Entropy, EntropyResult


def show_analysis(result: EntropyResult, as_json: bool) -> None:
    """Print losses, entropies, dimensions and the document's claims, and write the page."""
    from contextwise_papers.intrinsic_entropy.analysis import IntrinsicEntropy
    from contextwise_papers.intrinsic_entropy.page import terminal_report, write_entropy_page

    analysis = IntrinsicEntropy(result)
    show_values(analysis, as_json, terminal_report(analysis))
    page = result.path / "entropy.html"
    write_entropy_page(analysis, page, ["contextwise", *sys.argv[1:]])
    (say if as_json else show_line)(relative_to_here(f"measurement: {result.path}\npage: {page}"))


entropy = verb(Entropy, show_analysis)

"""Reproductions of tables and figures of the source documents: items, claims with verdicts, costs; one folder a document."""

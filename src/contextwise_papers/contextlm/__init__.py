"""Tables and figures of ContextLM."""

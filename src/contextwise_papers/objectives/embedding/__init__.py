"""Embeddings of texts (objectives, Section 6.2.2): one vector a text, whitened if asked; folders for sentence-transformers."""

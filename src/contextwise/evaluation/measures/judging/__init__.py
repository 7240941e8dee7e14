"""Judging: a model behind an endpoint rates or compares answers to MT-Bench and AlpacaEval: ``contextwise judge``.

ContextLM, Section 3.4; Zheng et al. 2023, "Judging LLM-as-a-judge with MT-Bench and Chatbot Arena"; Dubois et al. 2024,
"Length-controlled AlpacaEval".
"""

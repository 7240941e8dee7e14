"""Instruction following: a model's answers to MT-Bench and AlpacaEval, and what a judge says of them.

ContextLM, Section 3.4; Zheng et al. 2023, "Judging LLM-as-a-judge with MT-Bench and Chatbot Arena"; Dubois et al. 2024,
"Length-controlled AlpacaEval".
"""

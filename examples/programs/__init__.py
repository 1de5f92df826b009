"""The eleven workloads of the SGLang paper (arXiv 2312.07104, section 6) as programs."""

from __future__ import annotations

NAMES = (
    "multiple_choice",
    "completion",
    "react",
    "generative_agents",
    "tree_of_thought",
    "skeleton_of_thought",
    "judge",
    "json_decoding",
    "chat_short",
    "chat_long",
    "rag",
)

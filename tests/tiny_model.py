"""A whole tiny model for tests of the engine: random weights, a byte-level tokenizer and a chat template, all made in code."""

from __future__ import annotations

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from radixserve.model.chat_template import ChatTemplate
from radixserve.model.config import Architecture
from radixserve.model.generation_config import GenerationDefaults
from radixserve.model.loader import LoadedModel
from radixserve.model.token_bytes import BYTE_CHARACTERS
from radixserve.model.tokenizer import SpecialTokens, Tokenizer
from tests.tiny_decoder import tiny_decoder

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 264
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def byte_tokenizer() -> Tokenizer:
    """One token a byte (its id is the byte), then the special tokens."""
    backend = tokenizers.Tokenizer(models.BPE({char: byte for byte, char in enumerate(BYTE_CHARACTERS)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    bos, eos, _, turn = range(256, 260)
    special = SpecialTokens(bos_id=bos, eos_ids=(eos, turn))
    return Tokenizer(backend, alphabet="byte_level", special=special, vocab_size=VOCAB_SIZE)


def tiny_model(architecture: Architecture = "llama", dtype: torch.dtype = torch.float32, seed: int = 0) -> LoadedModel:
    """The random decoder of that seed with the byte tokenizer."""
    decoder = tiny_decoder(architecture, dtype, seed, vocab_size=VOCAB_SIZE)
    tokenizer = byte_tokenizer()
    return LoadedModel(
        name="tiny",
        source="made in code",
        config=decoder.config,
        weights=decoder.weights,
        tokenizer=tokenizer,
        chat_template=ChatTemplate(TEMPLATE),
        generation=GenerationDefaults(eos_ids=tokenizer.eos_ids),
        fingerprint=f"tiny-{architecture}-{dtype}-{seed}",
    )

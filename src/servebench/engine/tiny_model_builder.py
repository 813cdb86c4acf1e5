"""Makes the model `tiny-random`. Run by the *server's* Python: ``python tiny_model_builder.py DIRECTORY``.

It may import only the standard library, torch, tokenizers and transformers, for nothing else is sure to be there.
Weights are random (seed 0), the tokenizer is a real byte-level BPE trained on that Python's own standard library, so
nothing is downloaded. Two things are arranged: the last hidden channel is a constant, and through it the special
tokens and the bytes that are no text of their own get logits far below the rest. So a request yields as many tokens
as it asked for, and each token is text at once, as with a trained model.
"""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCABULARY = 4096
POSITIONS = 32_768
HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE = 256, 4, 4, 2, 640
SEED = 0
BEGIN, END, USER, ASSISTANT, SYSTEM = "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"
SPECIALS = [BEGIN, END, USER, ASSISTANT, SYSTEM]
TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
LOGIT_SPREAD = 3.0  # standard deviation of the logits: neither one-token loops nor a flat draw
SUPPRESSED_LOGIT = -40.0
CONSTANT = 1.0  # value of the constant channel in the residual stream


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of one source file."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(path.read_bytes())):
        text = ast.get_docstring(node) if isinstance(node, documented) else None
        if text:
            yield text


def corpus() -> list[str]:
    """Return English text that every Python carries: the docstrings of the standard library's top-level modules."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [text for source in sources for text in docstrings(source) if text.isascii()]
    if sum(map(len, texts)) < 200_000:
        raise SystemExit(f"{sysconfig.get_path('stdlib')}: too few docstrings to train a tokenizer on")
    return texts


def train_tokenizer() -> Any:
    """Train the byte-level BPE tokenizer and give it the chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
        additional_special_tokens=[USER, ASSISTANT, SYSTEM],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def never_generated(tokenizer: Any) -> list[int]:
    """Return the ids that must not be drawn: special tokens, and bytes that are no text of their own."""
    texts = [tokenizer.decode([i]) for i in range(VOCABULARY)]
    return [i for i, text in enumerate(texts) if i < len(SPECIALS) or not text.isascii() or not text.isprintable()]


def build_model(tokenizer: Any) -> Any:
    """Return the model, in bfloat16."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=POSITIONS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        shape_weights(model, never_generated(tokenizer))
    return model.to(torch.bfloat16)


def shape_weights(model: Any, suppressed: list[int]) -> None:
    """Give the logits their spread, and the `suppressed` ids a constant low one."""
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding.normal_(std=CONSTANT)
    embedding[:, -1] = CONSTANT
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[-1] = 0.0
        layer.mlp.down_proj.weight[-1] = 0.0
    head.normal_(std=LOGIT_SPREAD / HIDDEN**0.5)
    head[:, -1] = 0.0
    head[suppressed] = 0.0
    head[suppressed, -1] = SUPPRESSED_LOGIT


def main(directory: Path) -> None:
    """Write the model, its tokenizer and the marker RANDOM_WEIGHTS into `directory`."""
    tokenizer = train_tokenizer()
    model = build_model(tokenizer)
    model.generation_config.do_sample = True
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    parameters = sum(p.numel() for p in model.parameters())
    marker = {"seed": SEED, "parameters": parameters, "note": "random weights: its text means nothing"}
    (directory / "RANDOM_WEIGHTS").write_text(json.dumps(marker) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Networks for sequences of tokens: an LSTM and a small causal transformer.

Both return ``[N, outputs, L]``, the layout of torch's cross-entropy for one prediction per position. With one target
per sample they return ``[N, outputs]``, from the last position.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from feddrop.errors import ConfigError


class LSTM(nn.Module):
    """An embedding, LSTM layers, and a linear layer at every position."""

    def __init__(self, vocabulary: int, outputs: int, embedding: int, hidden: int, layers: int, every: bool) -> None:
        super().__init__()
        self.every = every
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.fc = nn.Linear(hidden, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens ``[N, L]`` to ``[N, outputs, L]``, or ``[N, outputs]``."""
        hidden, _ = self.lstm(self.embedding(tokens))
        return _predict(self.fc, hidden, self.every)


class Attention(nn.Module):
    """Causal attention; the number of heads follows from the width of the layers, so that heads can be dropped."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_size = width // heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Let each position of ``[N, L, width]`` attend to itself and those before it."""
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """Attention and a feed-forward part, each with a norm before it and a residual connection."""

    def __init__(self, width: int, heads: int, feed: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, feed)
        self.down = nn.Linear(feed, width)

    def forward(self, x: Tensor) -> Tensor:
        """Positions ``[N, L, width]`` to the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Embeddings of tokens and positions, causal blocks, a norm, and a linear layer at every position."""

    def __init__(
        self, vocabulary: int, outputs: int, length: int, width: int, heads: int, feed: int, layers: int, every: bool
    ) -> None:
        super().__init__()
        self.every = every
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, feed) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, outputs)
        for table in (self.embedding, self.position):  # small, as usual; torch's default deviation is 1
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens ``[N, L]`` to ``[N, outputs, L]``, or ``[N, outputs]``."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.embedding(tokens) + self.position(places))
        return _predict(self.fc, self.norm(x), self.every)


def _predict(fc: nn.Linear, hidden: Tensor, every: bool) -> Tensor:
    outputs: Tensor = fc(hidden).transpose(1, 2) if every else fc(hidden[:, -1])
    return outputs


def lstm(
    *, vocabulary: int, num_classes: int, embedding: int = 64, hidden: int = 256, layers: int = 1, every: bool = True
) -> LSTM:
    """LSTM over tokens.

    Args:
        vocabulary: number of distinct tokens.
        num_classes: number of outputs per position.
        embedding: width of the embedding.
        hidden: width of the LSTM.
        layers: number of LSTM layers.
        every: whether to predict at every position, or only at the last.
    """
    _positive("lstm", vocabulary=vocabulary, num_classes=num_classes, embedding=embedding, hidden=hidden, layers=layers)
    return LSTM(vocabulary, num_classes, embedding, hidden, layers, every)


def transformer(
    *,
    vocabulary: int,
    num_classes: int,
    length: int,
    width: int = 128,
    heads: int = 4,
    feed: int = 512,
    layers: int = 2,
    every: bool = True,
) -> Transformer:
    """Small causal transformer, with norms before attention and feed-forward parts.

    Args:
        vocabulary: number of distinct tokens.
        num_classes: number of outputs per position.
        length: length of the longest sequence.
        width: width of a position; a multiple of ``heads``.
        heads: attention heads.
        feed: hidden units of the feed-forward parts.
        layers: number of blocks.
        every: whether to predict at every position, or only at the last.
    """
    _positive("transformer", vocabulary=vocabulary, num_classes=num_classes, length=length, width=width, heads=heads)
    _positive("transformer", feed=feed, layers=layers)
    if width % heads:
        raise ConfigError(f"transformer: width is {width}; it must be a multiple of heads, {heads}.")
    return Transformer(vocabulary, num_classes, length, width, heads, feed, layers, every)


def _positive(name: str, **sizes: int) -> None:
    for what, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{name}: {what} is {size}; it must be at least 1.")

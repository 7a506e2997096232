"""A device for federated dropout in NumPy alone: it reads jobs, trains a perceptron's subnet, and writes updates.

Written from docs/frames.md, without torch and without feddrop: a starting point for a client in another language.
It supports the method ``feddrop`` at both levels, exact counts, all value types, and plain gradient descent.
"""

import hashlib
import json
import math
import struct
import zlib
from itertools import pairwise

import numpy as np

HEADER = struct.Struct("<4sBBHIIQd8sQQfI")
ITEM_BYTES = (4, 2, 2, 1)  # float32, float16, bfloat16, int8


def derive(root, *labels):
    """Derive a 64-bit seed from a root and labels."""
    hashed = hashlib.blake2b(digest_size=8, person=b"feddrop/seed")
    for label in (root, *labels):
        body = (
            label.encode() if isinstance(label, str) else label.to_bytes((label.bit_length() + 7) // 8 or 1, "little")
        )
        hashed.update((b"s" if isinstance(label, str) else b"i") + struct.pack("<I", len(body)) + body)
    return int.from_bytes(hashed.digest(), "little")


def words(key, count):
    """Return 32-bit words of Philox-4x64-10 from counter 1, low half of each 64-bit word first."""
    return np.random.Philox(key=key).random_raw((count + 1) // 2).astype("<u8").view("<u4")[:count]


def kept_count(size, keep):
    """Return how many of ``size`` are kept at a share: rounded half up, at least one."""
    return max(1, math.floor(keep * size + 0.5))


def chosen(seed, name, size, keep):
    """Return the sorted positions with the smallest words; ties go to the lower position."""
    order = np.argsort(words(derive(derive(seed, "mask"), name), size), kind="stable")
    return np.sort(order[: kept_count(size, keep)])


def unit_share(widths, rate):
    """Return the share of units to keep in every hidden layer: a bisection for the size of the weight level."""
    pairs = list(pairwise(widths))
    target = sum(a * b * (1.0 - rate) + b for a, b in pairs)

    def size(factor):
        share = round(math.sqrt(1.0 - rate) * factor, 9)
        inner = [kept_count(width, share) for width in widths[1:-1]]
        kept = [widths[0], *inner, widths[-1]]
        return sum(a * b + b for a, b in pairwise(kept))

    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if size(middle) <= target else (low, middle)
    return round(math.sqrt(1.0 - rate) * min((low, high), key=lambda factor: abs(size(factor) - target)), 9)


def subnet(widths, level, seed, rate):
    """Return the kept rows and columns (unit level) or flat positions (weight level) of every tensor; None for all."""
    found, last, units = {}, len(widths) - 1, {}
    if level == "unit" and rate > 0:
        share = unit_share(widths, rate)
        units = {i: chosen(seed, f"fc{i}", widths[i], share) for i in range(1, last)}
    for i in range(1, last + 1):
        rows, columns = (units.get(at, np.arange(widths[at])) for at in (i, i - 1))
        flat = np.arange(widths[i] * widths[i - 1]).reshape(widths[i], widths[i - 1])
        if level == "weight" and rate > 0:
            found[f"fc{i}.weight"] = chosen(seed, f"fc{i}.weight", flat.size, 1.0 - rate)
        else:
            found[f"fc{i}.weight"] = flat[np.ix_(rows, columns)].reshape(-1)
        found[f"fc{i}.bias"] = rows
    return found


def shapes_of(widths):
    """Return the shape of every tensor of a perceptron, in order."""
    pairs = enumerate(pairwise(widths), 1)
    return {f"fc{i}.{kind}": (b, a) if kind == "weight" else (b,) for i, (a, b) in pairs for kind in ("weight", "bias")}


def network_digest(widths):
    """Return the digest of the network that a node sends in its introduction."""
    return hashlib.blake2b(json.dumps([2, shapes_of(widths)]).encode(), digest_size=8).hexdigest()


def subnet_digest(shapes, kept):
    """Return the digest of names, shapes and kept counts that a header holds."""
    hashed = hashlib.blake2b(digest_size=8, person=b"feddrop/shape2")
    for name, shape in shapes.items():
        text = name.encode()
        hashed.update(struct.pack("<IH", len(text), len(shape)) + text + struct.pack(f"<{len(shape)}Q", *shape))
        hashed.update(struct.pack("<Q", len(kept[name])))
    return hashed.digest()


def read_values(data, kept, dtype):
    """Return the values of every tensor as float32."""
    counts, at = [len(positions) for positions in kept.values()], HEADER.size
    scales = np.frombuffer(data, "<f4", len(kept), at) if dtype == 3 else np.ones(len(kept), "<f4")
    raw = data[at + 4 * len(kept) * (dtype == 3) :]
    if len(raw) != sum(counts) * ITEM_BYTES[dtype]:
        raise ValueError(f"the frame has {len(raw)} bytes of values; expected {sum(counts)} values")
    if dtype == 2:  # bfloat16 is the upper half of float32
        flat = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    else:
        flat = np.frombuffer(raw, ("<f4", "<f2", "", "i1")[dtype]).astype("<f4")
    parts = np.split(flat, np.cumsum(counts)[:-1])
    return {name: part * scale for name, part, scale in zip(kept, parts, scales, strict=True)}


def write_values(values, dtype):
    """Return values as the bytes after a header; the inverse of :func:`read_values`."""
    parts = [np.asarray(value, "<f4") for value in values.values()]
    if dtype == 3:
        scales = np.array([np.abs(part).max(initial=0.0) / 127 for part in parts], "<f4")
        coded = [np.rint(part / scale) if scale else 0 * part for part, scale in zip(parts, scales, strict=True)]
        return scales.tobytes() + np.concatenate(coded).astype("i1").tobytes()
    flat = np.concatenate(parts)
    if dtype == 2:  # rounded to the nearest, ties to even
        bits = flat.view("<u4")
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
    return flat.astype(("<f4", "<f2")[dtype]).tobytes()


def train(layers, masks, x, y, seed, lr, batch_size, epochs):
    """Train a perceptron in place by gradient descent on the cross-entropy, and return the mean loss."""
    total, seen = 0.0, 0
    for epoch in range(epochs):
        order = np.argsort(words(derive(seed, "order", epoch), len(y)), kind="stable")
        for at in range(0, len(y), batch_size):
            batch = order[at : at + batch_size]
            inputs = [x[batch]]
            for i, (w, b) in enumerate(layers):
                out = inputs[-1] @ w.T + b
                inputs.append(out if i == len(layers) - 1 else np.maximum(out, 0))
            shifted = inputs[-1] - inputs[-1].max(1, keepdims=True)
            logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
            total, seen = total - float(logs[np.arange(len(batch)), y[batch]].sum()), seen + len(batch)
            slope = np.exp(logs)
            slope[np.arange(len(batch)), y[batch]] -= 1
            slope /= len(batch)
            for i in reversed(range(len(layers))):
                w, b = layers[i]
                into_w, into_b, slope = slope.T @ inputs[i], slope.sum(0), slope @ w * (inputs[i] > 0)
                w -= np.float32(lr) * into_w * masks[i]
                b -= np.float32(lr) * into_b
    return total / seen


def answer(data, x, y, widths, *, level, lr, batch_size, epochs):
    """Answer a job with an update: x is ``[N, inputs]`` float32, y is ``[N]``, widths are those of all layers."""
    magic, version, codes, sections, round_, device, seed, rate, digest, count, _, _, crc = HEADER.unpack_from(data)
    if (magic, version, codes >> 4, sections) != (b"FDRP", 2, 0, 0) or zlib.crc32(
        data[64:], zlib.crc32(data[:60])
    ) != crc:
        raise ValueError("not a job of format 2 without payload, or damaged")
    shapes, kept = shapes_of(widths), subnet(widths, level, seed, rate)
    if digest != subnet_digest(shapes, kept) or count != sum(map(len, kept.values())):
        raise ValueError("the job holds another subnet: network, rate, seed or method differ")
    sent = read_values(data, kept, codes & 15)
    layers, masks = [], []
    for i in range(1, len(widths)):
        weight, bias = sent[f"fc{i}.weight"], sent[f"fc{i}.bias"].copy()
        if level == "weight":
            dense, mask = np.zeros((2, widths[i] * widths[i - 1]), "<f4")
            dense[kept[f"fc{i}.weight"]], mask[kept[f"fc{i}.weight"]] = weight, 1.0
            weight, mask = dense.reshape(widths[i], -1), mask.reshape(widths[i], -1)
        else:
            weight, mask = weight.reshape(len(bias), -1).copy(), 1.0
        layers.append((weight, bias))
        masks.append(mask)
    loss = train(layers, masks, x, y, seed, lr, batch_size, epochs)
    moved = {}
    for i, (weight, bias) in enumerate(layers, 1):
        flat = weight.reshape(-1)[kept[f"fc{i}.weight"]] if level == "weight" else weight.reshape(-1)
        moved |= {f"fc{i}.weight": flat - sent[f"fc{i}.weight"], f"fc{i}.bias": bias - sent[f"fc{i}.bias"]}
    body = write_values(moved, codes & 15)
    head = HEADER.pack(magic, version, codes | 16, 0, round_, device, seed, rate, digest, count, len(y), loss, 0)[:60]
    return head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body

"""Checkpoints and memories: every flipped bit is found, what is needed is kept, what is not is removed."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

import feddrop
from feddrop.errors import RunError
from feddrop.storage.checkpoints import (
    DamagedError,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
    saved_rounds,
    seal,
    unseal,
)
from feddrop.storage.memories import Memories

GROUPS = {
    "params": {"a.weight": torch.arange(60.0).reshape(5, 12), "b": torch.zeros(3, dtype=torch.bfloat16)},
    "state": {"mask": torch.tensor([True, False]), "none": torch.zeros(0, dtype=torch.int32), "one": torch.tensor(3)},
}


def flip(data, bit):
    hurt = bytearray(data)
    hurt[bit // 8] ^= 1 << bit % 8
    return bytes(hurt)


def test_what_is_saved_is_loaded(tmp_path):
    save_checkpoint(tmp_path, 7, GROUPS, notes={"why": "so"})
    found = load_checkpoint(tmp_path)
    assert found.round == 7
    assert found.notes == {"why": "so", "round": "7"}
    for group, members in GROUPS.items():
        assert found.groups[group].keys() == members.keys()
        for name, tensor in members.items():
            assert found.groups[group][name].dtype == tensor.dtype
            assert torch.equal(found.groups[group][name], tensor)


def test_every_flipped_bit_is_found():
    """All bits of the file, one by one: length, header, padding, digest and values."""
    data = seal({"w": torch.arange(6.0), "m": torch.tensor([True, False])}, {"round": "1"})
    unseal(data)
    for bit in range(8 * len(data)):
        with pytest.raises(DamagedError):
            unseal(flip(data, bit))


def test_every_cut_is_found():
    data = seal({"w": torch.arange(6.0)}, {"round": "1"})
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            unseal(data[:size])
    with pytest.raises(DamagedError):
        unseal(data + b"\0")


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 64, b"\x02" + bytes(7) + b"{}", b"\x10" + bytes(7) + b"[" * 16, b"\0" * 8]
)
def test_what_is_no_checkpoint_is_damaged(data):
    with pytest.raises(DamagedError):
        unseal(data)


def test_sixty_flips_fall_back_to_the_older_one(tmp_path):
    save_checkpoint(tmp_path, 1, GROUPS)
    save_checkpoint(tmp_path, 2, GROUPS)
    path = tmp_path / "round-000002.safetensors"
    good, chance = path.read_bytes(), random.Random(0)
    for _ in range(60):
        path.write_bytes(flip(good, chance.randrange(8 * len(good))))
        assert load_checkpoint(tmp_path).round == 1
    path.write_bytes(good)
    assert load_checkpoint(tmp_path).round == 2


def test_the_round_inside_is_held_to_the_name(tmp_path):
    save_checkpoint(tmp_path, 1, GROUPS)
    (tmp_path / "round-000009.safetensors").write_bytes((tmp_path / "round-000001.safetensors").read_bytes())
    with pytest.raises(DamagedError, match="says round '1', its name says 9"):
        read_checkpoint(tmp_path, 9)
    assert load_checkpoint(tmp_path).round == 1


def test_a_round_beyond_reason_is_refused(tmp_path):
    save_checkpoint(tmp_path, 3, GROUPS)
    data = seal({"params/w": torch.zeros(1)}, {"round": str(10**18)})
    for name in (f"round-{10**18}.safetensors", "round-000004.safetensors", f"round-{10**10 - 1}.safetensors"):
        (tmp_path / name).write_bytes(data)
    assert load_checkpoint(tmp_path).round == 3
    with pytest.raises(RunError, match="rounds go from 1"):
        save_checkpoint(tmp_path, 10**18, GROUPS)


def test_checkpoints_sort_by_number_and_the_current_one_stays(tmp_path):
    for round_ in (9_999_998, 9_999_999, 10_000_000):
        save_checkpoint(tmp_path, round_, GROUPS)
    assert saved_rounds(tmp_path) == [9_999_999, 10_000_000]
    assert load_checkpoint(tmp_path).round == 10_000_000
    save_checkpoint(tmp_path, 5, GROUPS)  # went back: what is ahead is of another past
    assert saved_rounds(tmp_path) == [5]


def test_the_best_is_kept_beside_the_last_two(tmp_path):
    kept = [save_checkpoint(tmp_path, round_, GROUPS, best=min(round_, 2)) for round_ in range(1, 7)]
    assert kept == [{1}, {1, 2}, {2, 3}, {2, 3, 4}, {2, 4, 5}, {2, 5, 6}]
    assert saved_rounds(tmp_path) == [2, 5, 6]


def test_views_and_shared_tensors_are_saved():
    base = torch.arange(12.0).reshape(3, 4)
    found, _ = unseal(seal({"t": base.T, "row": base[1], "same": base, "grad": base.clone().requires_grad_()}, {}))
    assert torch.equal(found["t"], base.T)
    assert torch.equal(found["row"], base[1])


# --- memories --------------------------------------------------------------------------------------------------------


def names(memories):
    return sorted(path.name for path in memories.folder.iterdir()) if memories.folder.is_dir() else []


def test_memories_are_what_was_put_and_count_from_the_commit(tmp_path):
    memories = Memories(tmp_path / "m")
    assert memories.get(3) == b""
    memories.put(1, 3, b"mask")
    assert memories.get(3) == b""  # a round that fails is done again from here
    memories.commit(1)
    assert memories.get(3) == b"mask"
    memories.put(2, 3, b"")
    memories.commit(2)
    assert memories.get(3) == b""
    assert memories.get(10**9) == b""


def test_only_what_changed_is_written(tmp_path):
    memories = Memories(tmp_path / "m")
    for round_ in range(1, 4):
        memories.put(round_, 0, b"same")
        memories.put(round_, 1, b"%d" % round_)
        memories.put(round_, 2, b"")
        memories.commit(round_)
        memories.keep({round_})
    assert names(memories) == ["device-000000-round-000001.safetensors", "device-000001-round-000003.safetensors"]
    assert memories.get(0) == b"same"
    memories.put(4, 0, b"other")
    memories.commit(4)
    assert memories.get(0) == b"other"


def test_ten_of_a_thousand_write_ten_files(tmp_path, monkeypatch):
    memories, chance, plain = Memories(tmp_path / "m"), random.Random(1), {}
    written = []
    monkeypatch.setattr(
        "feddrop.storage.memories.write_atomically", lambda path, data, **_: written.append(path) or None
    )
    for round_ in range(1, 6):
        written.clear()
        for device in chance.sample(range(1000), 10):
            memories.put(round_, device, b"%d" % round_)
            plain[device] = round_
        index = memories.commit(round_)
        assert len(written) == 10
        assert {d: r for d, r in enumerate(index.tolist()) if r} == plain


def test_files_live_as_long_as_a_kept_checkpoint_refers_to_them(tmp_path):
    """Against the plain rule: keep exactly the files that some kept round saw."""
    memories, chance = Memories(tmp_path / "m"), random.Random(2)
    current, seen, kept = {}, {}, set()
    for round_ in range(1, 40):
        for device in chance.sample(range(12), 3):
            forget = chance.random() < 0.2
            memories.put(round_, device, b"" if forget else bytes([round_, device]))
            current[device] = 0 if forget else round_
        memories.commit(round_)
        seen[round_] = dict(current)
        kept = {round_, round_ - 1, max(1, round_ // 7 * 7)} & seen.keys() & (kept | {round_})
        memories.keep(kept)
        wanted = {(d, r) for k in kept for d, r in seen[k].items() if r}
        assert names(memories) == sorted(f"device-{d:06d}-round-{r:06d}.safetensors" for d, r in wanted)


def test_memories_are_restored_exactly(tmp_path):
    memories = Memories(tmp_path / "m")
    indices = {}
    for round_ in (1, 2, 3):
        for device in (round_, 5):
            memories.put(round_, device, bytes([round_, device]))
        indices[round_] = memories.commit(round_)
    again = Memories(tmp_path / "m")
    assert not again.damaged(indices[2])
    again.restore(2, {2: indices[2]})
    assert {d: list(again.get(d)) for d in (1, 2, 5)} == {1: [1, 1], 2: [2, 2], 5: [2, 5]}
    assert again.get(3) == b""
    assert [name[:13] for name in names(again)] == ["device-000001", "device-000002", "device-000005"]
    again.restore(0, {})
    assert names(again) == []


def test_a_damaged_memory_is_found(tmp_path):
    memories = Memories(tmp_path / "m")
    memories.put(1, 0, bytes(32))
    memories.put(1, 1, bytes(40))
    index = memories.commit(1)
    path, other = (tmp_path / "m" / name for name in names(memories))
    good, chance = path.read_bytes(), random.Random(3)
    for _ in range(60):
        path.write_bytes(flip(good, chance.randrange(8 * len(good))))
        assert "memory of device 0" in memories.damaged(index)
        with pytest.raises(RunError, match="damaged during the run"):
            memories.get(0)
    path.write_bytes(other.read_bytes())
    assert "its name says 0" in memories.damaged(index)
    path.unlink()
    assert "memory of device 0" in memories.damaged(index)
    assert memories.damaged(torch.zeros(2)) == "its list of memories is malformed"


@pytest.mark.parametrize("device", [-1, 2**31])
def test_devices_have_numbers(tmp_path, device):
    with pytest.raises(RunError, match="devices go from 0"):
        Memories(tmp_path).put(1, device, b"x")


def test_a_damaged_last_checkpoint_is_reported_when_the_network_is_loaded(tmp_path):
    """``load_model`` returned the network of an earlier round without a word before."""
    config = feddrop.RunConfig(rounds=3, data=feddrop.Data(devices=2, train_limit=60))
    feddrop.run(config, tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feddrop.load_model(tmp_path / "run", strict=True)
    path = tmp_path / "run" / "checkpoints" / "round-000003.safetensors"
    whole = path.read_bytes()
    for damage in (lambda: path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1])), path.unlink):
        damage()
        with pytest.warns(feddrop.FeddropWarning, match=r"checkpoint of round 3, .* Using round 2 instead"):
            feddrop.load_model(tmp_path / "run")
        with pytest.raises(feddrop.RunError, match=r"checkpoint of round 3, the last of .*, is damaged or missing"):
            feddrop.load_run(tmp_path / "run").model(strict=True)

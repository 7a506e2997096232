import contextlib
import gzip
import hashlib
import http.server
import io
import os
import subprocess
import sys
import tarfile
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from feddrop import data
from feddrop.data import sources
from feddrop.errors import ConfigError, DataError

REAL = Path(os.environ.get("FEDDROP_DATA", ""))


@pytest.fixture(autouse=True)
def empty_home(monkeypatch, tmp_path):
    """No test sees, or writes to, the data of the user."""
    monkeypatch.delenv("FEDDROP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# --- digits


def test_digits():
    digits = data.load_dataset("digits")
    assert (digits.name, digits.num_classes, digits.input_shape) == ("digits", 10, (1, 32, 32))
    assert (len(digits.train_x), len(digits.test_x)) == (len(digits.train_y), len(digits.test_y)) == (1438, 359)
    assert (digits.train_x.dtype, digits.train_y.dtype) == (torch.float32, torch.int64)
    assert abs(float(digits.train_x.mean())) < 1e-5
    assert float(digits.train_x.std()) == pytest.approx(1, abs=1e-3)
    test_counts, all_counts = digits.test_y.bincount(), torch.cat([digits.train_y, digits.test_y]).bincount()
    assert (test_counts - 0.2 * all_counts).abs().max() <= 0.5
    again = data.load_dataset("digits")
    assert torch.equal(again.train_x, digits.train_x)
    assert torch.equal(again.test_y, digits.test_y)


def test_digits_split_is_pinned():
    """The test set may not change between versions: results would no longer compare."""
    digits = data.load_dataset("digits")
    assert digits.test_y[:12].tolist() == [1, 2, 8, 0, 4, 7, 8, 3, 6, 8, 9, 5]
    assert digits.train_y[:12].tolist() == [0, 3, 4, 5, 6, 7, 9, 1, 2, 3, 5, 6]


def test_digits_are_sklearns_images():
    """At 8 x 8 nothing is resized: every image is there once, up to one shift and one scale."""
    from sklearn.datasets import load_digits

    digits = data.load_dataset("digits", image_size=8)
    ours = torch.cat([digits.train_x, digits.test_x]).reshape(-1, 64)
    ours = ((ours - ours.min()) / (ours.max() - ours.min()) * 16).round().to(torch.uint8).numpy()
    labels = torch.cat([digits.train_y, digits.test_y]).numpy()
    real = load_digits()
    mine = sorted((image.tobytes(), label) for image, label in zip(ours, labels.tolist(), strict=True))
    theirs = real.images.reshape(-1, 64).astype(np.uint8)
    assert mine == sorted((image.tobytes(), label) for image, label in zip(theirs, real.target.tolist(), strict=True))


def test_digits_are_resized_bilinearly():
    given = data.load_dataset("digits", image_size=8).train_x
    large = torch.nn.functional.interpolate(given, size=(32, 32), mode="bilinear", align_corners=False)
    # Shrinking must weigh all pixels, not pick some: by a triangle around the centre of each new pixel.
    tent = torch.tensor([5.0, 7, 7, 5, 3, 1, 0, 0]) / 28
    ramp = torch.stack([tent, tent.flip(0)])
    for size, by_hand in ((32, large), (2, ramp @ given @ ramp.T)):
        by_hand = (by_hand - by_hand.mean()) / by_hand.std(correction=0)
        assert torch.allclose(by_hand, data.load_dataset("digits", image_size=size).train_x, atol=1e-4)


def test_train_limit_is_balanced_and_repeatable():
    some = data.load_dataset("digits", train_limit=123)
    assert len(some.train_x) == len(some.train_y) == 123
    assert set(some.train_y.bincount().tolist()) == {12, 13}
    assert torch.equal(some.train_x, data.load_dataset("digits", train_limit=123).train_x)
    assert torch.equal(some.test_y, data.load_dataset("digits").test_y)
    for limit in (0, 1439):
        with pytest.raises(ConfigError, match="from 1 to 1438"):
            data.load_dataset("digits", train_limit=limit)


def test_load_refuses():
    with pytest.raises(ConfigError, match="Did you mean 'cifar100'"):
        data.load_dataset("cifar-100")
    with pytest.raises(ConfigError, match="image_size is 0"):
        data.load_dataset("digits", image_size=0)
    with pytest.raises(ConfigError, match="leave path out"):
        data.load_dataset("digits", path="somewhere")


def test_import_does_not_load_torch():
    code = "import sys, feddrop.data; assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_embedded_data_are_read_without_importing_scikit_learn():
    """Its import would take longer than all the rest of the set-up; the tables are those that it gives itself."""
    code = (
        "import sys, numpy as np\n"
        "from feddrop.data.embedded import _table, load_diabetes, load_digits\n"
        "load_digits(), load_diabetes()\n"
        "assert not {'sklearn', 'scipy', 'pandas', 'torch'} & set(sys.modules)\n"
        "from sklearn.datasets import load_diabetes, load_digits\n"
        "found, real = _table('digits.csv.gz', ','), load_digits()\n"
        "assert np.array_equal(found, np.column_stack([real.data, real.target]))\n"
        "x, y = load_diabetes(return_X_y=True, scaled=False)\n"
        "assert np.array_equal(_table('diabetes_data_raw.csv.gz'), x)\n"
        "assert np.array_equal(_table('diabetes_target.csv.gz'), y)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_scikit_learn_the_embedded_data_say_what_to_install(monkeypatch):
    monkeypatch.setattr(data.embedded, "find_spec", lambda _: None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        data.load_dataset("digits")


# --- archives: small ones of the same form, written here


@pytest.fixture(params=["cifar10", "cifar100"])
def tiny(request, monkeypatch):
    """A CIFAR set of 400 training and 100 test images, and the bytes of its files."""
    name = request.param
    source = sources.SOURCES[name]
    train = dict.fromkeys(source.train, 400 // len(source.train))
    source = replace(source, train=train, test=dict.fromkeys(source.test, 100))
    rng = np.random.default_rng(1)
    files = {source.names: "\n".join(f"class{i}" for i in range(source.classes)).encode() + b"\n\n"}
    for file, count in (*source.train.items(), *source.test.items()):
        records = rng.integers(0, 256, (count, source.label_bytes + 3072), dtype=np.uint8)
        records[:, 0] = rng.integers(0, 20, count)
        whole = 400 if file in source.train else 100
        balanced = np.arange(whole) % source.classes
        first = list(train).index(file) * count if file in train else 0
        records[:, source.label_bytes - 1] = balanced[first : first + count]
        files[file] = records.tobytes()
    monkeypatch.setitem(sources.SOURCES, name, source)
    return name, source, files


def pack(source, files, *, prefix="") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(prefix + source.folder + "/extra.html"))
        for name, content in files.items():
            member = tarfile.TarInfo(f"{prefix}{source.folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_cifar_from_every_form_and_place(tiny, tmp_path, monkeypatch):
    name, source, files = tiny
    packed = write(tmp_path / "packed", {source.archive: pack(source, files)})
    dotted = write(tmp_path / "dotted", {"renamed.tgz": pack(source, files, prefix="./")})
    unpacked = write(tmp_path / "unpacked" / source.folder, files)
    seen = [
        data.load_dataset(name, path=path)
        for path in (packed, str(packed / source.archive), dotted / "renamed.tgz", unpacked, unpacked.parent)
    ]
    monkeypatch.setenv("FEDDROP_DATA", str(packed))
    seen.append(data.load_dataset(name))
    assert data.locate_dataset(name) == packed / source.archive
    monkeypatch.setenv("FEDDROP_DATA", str(tmp_path))  # has nothing: the cache is next
    assert data.locate_dataset(name) is None
    cached = write(sources.cache_folder(), {source.archive: pack(source, files)}) / source.archive
    assert data.locate_dataset(name) == cached
    seen.append(data.load_dataset(name))

    # The slow obvious twin: byte by byte from the format's description.
    def parse(names):
        images, labels = [], []
        record = source.label_bytes + 3072
        for file in names:
            for start in range(0, len(files[file]), record):
                labels.append(files[file][start + source.label_bytes - 1])
                pixels = np.frombuffer(files[file][start + source.label_bytes : start + record], np.uint8)
                images.append([pixels[plane * 1024 : (plane + 1) * 1024].reshape(32, 32) for plane in range(3)])
        return np.array(images, np.float64), labels

    x, y = parse(source.train)
    test_x, test_y = parse(source.test)
    mean, deviation = x.mean((0, 2, 3), keepdims=True), x.std((0, 2, 3), keepdims=True)
    for found in seen:
        assert found.class_names == tuple(f"class{i}" for i in range(source.classes))
        assert found.input_shape == (3, 32, 32)
        assert found.train_y.tolist() == y
        assert found.test_y.tolist() == test_y
        assert np.allclose(found.train_x.numpy(), (x - mean) / deviation, atol=1e-5)
        assert np.allclose(found.test_x.numpy(), (test_x - mean) / deviation, atol=1e-5)


def test_cifar_missing_says_how_to_get_it(tiny, tmp_path, monkeypatch):
    name, source, _ = tiny
    with pytest.raises(DataError) as caught:
        data.load_dataset(name)
    for hint in (f"feddrop data {name} --download", source.archive, "FEDDROP_DATA", str(sources.cache_folder())):
        assert hint in str(caught.value)
    with pytest.raises(DataError, match="nowhere"):
        data.load_dataset(name, path=tmp_path / "nowhere")
    monkeypatch.setenv("FEDDROP_DATA", str(tmp_path / "gone"))
    with pytest.raises(DataError, match="not a folder"):
        data.load_dataset(name)


def test_cifar_damage_is_found(tiny, tmp_path):
    name, source, files = tiny
    test_file = next(iter(source.test))
    train_file = next(iter(source.train))
    good = pack(source, files)
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 16
    bad_label = bytearray(files[test_file])
    bad_label[source.label_bytes - 1] = source.classes
    unbalanced = bytearray(files[test_file])
    unbalanced[source.label_bytes - 1] = 1
    cases = {
        "cannot be read": (
            good[: len(good) // 2],
            good[:-4],
            bytes(flipped),
            b"not an archive",
            b"",
            gzip.compress(b"x"),
        ),
        "bytes instead of": (
            pack(source, files | {train_file: files[train_file][:-1]}),
            pack(source, files | {test_file: files[test_file] + b"0"}),
            pack(source, files | {source.names: b"x" * 70_000}),
        ),
        "it has no": (
            pack(source, {key: value for key, value in files.items() if key != train_file}),
            pack(source, {key: value for key, value in files.items() if key != source.names}),
            pack(replace(source, folder="other"), files),
        ),
        "images of each of": (
            pack(source, files | {test_file: bytes(bad_label)}),
            pack(source, files | {test_file: bytes(unbalanced)}),
        ),
        "names 2 classes": (pack(source, files | {source.names: b"cat\ndog\n"}),),
    }
    for reason, contents in cases.items():
        for content in contents:
            archive = tmp_path / "archive.tar.gz"
            archive.write_bytes(content)
            with pytest.raises(DataError, match=reason):
                data.load_dataset(name, path=archive)
    folder = write(tmp_path / "folder", files | {test_file: files[test_file][:-1]})
    with pytest.raises(DataError, match="bytes instead of"):
        data.load_dataset(name, path=folder)
    (folder / test_file).unlink()
    with pytest.raises(DataError, match=f"it has no {test_file}"):
        data.load_dataset(name, path=folder)


def member(content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, **fields: str) -> bytes:
    """A member of a tar, with PAX fields (of which ``__`` stands for a dot)."""
    info = tarfile.TarInfo("cifar/x")
    info.type, info.size = kind, len(content)
    info.pax_headers = {key.replace("__", "."): value for key, value in fields.items()}
    return info.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % 512)


def cut_sparse() -> bytes:
    """A header in GNU's old form that promises a further block."""
    block = bytearray(member(kind=tarfile.GNUTYPE_SPARSE))
    block[482], block[148:156] = 1, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


SPARSE_1 = {"GNU__sparse__major": "1", "GNU__sparse__minor": "0"}


@pytest.mark.parametrize(
    ("trap", "reason"),
    [
        pytest.param(member(GNU__sparse__map="a,b"), "invalid literal", id="sparse map without numbers"),
        pytest.param(member(b"one\n", **SPARSE_1), "invalid literal", id="sparse list without numbers"),
        pytest.param(
            member(b"9" * 20 + b"\n" + b"0\n" * 300_000, **SPARSE_1), "far too large", id="endless sparse list"
        ),
        pytest.param(cut_sparse(), "index out of range", id="sparse header cut"),
        pytest.param(member(kind=tarfile.XHDTYPE) * 400, "recursion", id="header before header"),
        pytest.param(member(comment="x" * 40_000_000), "a header has 400000", id="large header"),
        pytest.param(member(b"1" * 200_000, kind=tarfile.XHDTYPE), "a header has 200000", id="header slow to search"),
        pytest.param(member() * 600, "far too large", id="many members"),
        pytest.param(member(size=str(10**30)), "unexpected end", id="endless file"),
        pytest.param(member(size=str(10**30), GNU__sparse__map="0,0"), "beyond the end", id="endless sparse file"),
        pytest.param(member() + bytes(40_000_000), "far too large", id="large end"),
    ],
)
def test_cifar_hostile_archives_are_refused_in_little_memory(trap, reason, tmp_path):
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(gzip.compress(trap, 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=f"cannot be read .*{reason}.*Download it again"):
            data.load_dataset("cifar100", path=archive)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_cifar_archive_may_hold_other_files_but_not_many_times_the_data(tiny, tmp_path):
    name, source, files = tiny
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(pack(source, files | {"readme.html": b"x" * 1_000_000}))
    assert len(data.load_dataset(name, path=archive).train_x) == 400
    archive.write_bytes(pack(source, files | {"readme.html": b"x" * 2_000_000}))
    with pytest.raises(DataError, match="far too large"):
        data.load_dataset(name, path=archive)


def test_cifar_links_in_an_archive_are_not_followed(tiny, tmp_path):
    name, source, files = tiny
    secret = tmp_path / "secret"
    train_file = next(iter(source.train))
    secret.write_bytes(files[train_file])
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        link = tarfile.TarInfo(f"{source.folder}/{train_file}")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(link)
    (tmp_path / "archive.tar.gz").write_bytes(out.getvalue())
    with pytest.raises(DataError, match="it has no"):
        data.load_dataset(name, path=tmp_path / "archive.tar.gz")


# --- Fashion-MNIST


def idx(values: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes()
    return gzip.compress(header + values.tobytes())


@pytest.fixture
def fashion(monkeypatch):
    source = replace(sources.SOURCES["fashion_mnist"], train=40, test=20)
    monkeypatch.setitem(sources.SOURCES, "fashion_mnist", source)
    rng = np.random.default_rng(2)
    arrays = []
    for count in (40, 20):
        arrays += [rng.integers(0, 256, (count, 28, 28), np.uint8), (np.arange(count) % 10).astype(np.uint8)]
    return source, arrays, {name: idx(values) for name, values in zip(source.files, arrays, strict=True)}


def test_fashion_mnist(fashion, tmp_path):
    _, (x, y, test_x, test_y), files = fashion
    flat = write(tmp_path / "flat", files)
    write(tmp_path / "nested" / "fashion_mnist", files)
    for path in (flat, tmp_path / "nested"):
        found = data.load_dataset("fashion_mnist", path=path, image_size=28)
        assert found.class_names[0] == "T-shirt/top"
        assert (found.num_classes, found.input_shape) == (10, (1, 28, 28))
        assert found.train_y.tolist() == y.tolist()
        assert found.test_y.tolist() == test_y.tolist()
        assert np.allclose(found.train_x[:, 0], (x - x.mean()) / x.std(), atol=1e-5)
        assert np.allclose(found.test_x[:, 0], (test_x - x.mean()) / x.std(), atol=1e-5)
    assert data.load_dataset("fashion_mnist", path=flat).input_shape == (1, 32, 32)


def test_fashion_mnist_damage_is_found(fashion, tmp_path):
    source, (x, y, _, _), files = fashion
    images, labels = list(source.files)[:2]
    digits = y.copy()
    digits[0] = 1  # as plain MNIST, whose files have the same names and whose classes are uneven
    for file, content, reason in (
        (images, files[images][:-9], "cannot be read"),
        (images, b"nonsense", "cannot be read"),
        (images, idx(x[:-1]), "not an IDX file"),
        (images, gzip.compress(gzip.decompress(files[images]) + b"0"), "not an IDX file"),
        (labels, idx(digits), "images of each of 10 classes"),
    ):
        folder = write(tmp_path / "bad", files | {file: content})
        with pytest.raises(DataError, match=reason):
            data.load_dataset("fashion_mnist", path=folder)
    write(folder, files)
    (folder / labels).unlink()
    with pytest.raises(DataError, match=r"is not in .*bad"):
        data.load_dataset("fashion_mnist", path=folder)
    with pytest.raises(DataError, match="feddrop data fashion_mnist --download"):
        data.load_dataset("fashion_mnist")


# --- downloads, from a server on this machine


@contextlib.contextmanager
def serve(files: dict[str, bytes], *, cut: int = 0):
    """Serve files; ``cut`` bytes short of the length announced."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            content = files.get(self.path[1:])
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) - cut])

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def use(monkeypatch, name, **change):
    monkeypatch.setitem(sources.SOURCES, name, replace(sources.SOURCES[name], **change))


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_download_cifar_once(tiny, tmp_path, monkeypatch):
    name, source, files = tiny
    content = pack(source, files)
    with serve({source.archive: content}) as (base, requests):
        use(monkeypatch, name, base=base, sha256=hashlib.sha256(content).hexdigest())
        assert len(data.load_dataset(name, download=True).train_x) == 400
        assert len(data.load_dataset(name, download=True).train_x) == 400
        assert requests == ["/" + source.archive]
        for path in (tmp_path / "mine", tmp_path / "also" / source.archive):
            assert len(data.load_dataset(name, path=path, download=True).train_x) == 400
    for folder in (sources.cache_folder(), tmp_path / "mine", tmp_path / "also"):
        assert everything_in(folder) == [source.archive]
    assert len(data.load_dataset(name).train_x) == 400


def test_download_fashion_fetches_what_is_missing(fashion, monkeypatch):
    _, _, files = fashion
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    with serve(files) as (base, requests):
        use(monkeypatch, "fashion_mnist", base=base, files=sums)
        data.load_dataset("fashion_mnist", download=True)
        assert everything_in(sources.cache_folder() / "fashion_mnist") == sorted(files)
        lost = list(files)[2]
        (sources.cache_folder() / "fashion_mnist" / lost).unlink()
        del requests[:]
        data.load_dataset("fashion_mnist", download=True)
        assert requests == ["/" + lost]


def test_failed_downloads_leave_nothing_behind(tiny, monkeypatch):
    name, source, files = tiny
    content = pack(source, files)
    with serve({source.archive: content}) as (base, _):
        use(monkeypatch, name, base=base, sha256="0" * 64)
        with pytest.raises(DataError, match="SHA-256"):
            data.load_dataset(name, download=True)
        use(monkeypatch, name, base=base + "nowhere/")
        with pytest.raises(DataError, match="404"):
            data.load_dataset(name, download=True)
    with serve({source.archive: content}, cut=5) as (base, _):
        use(monkeypatch, name, base=base, sha256=hashlib.sha256(content[:-5]).hexdigest())
        with pytest.raises(DataError, match="Cannot download"):
            data.load_dataset(name, download=True)
    with pytest.raises(DataError, match="Cannot download"):
        data.load_dataset(name, download=True)  # the server is gone
    assert everything_in(sources.cache_folder()) == []


def test_official_addresses_are_secure():
    for source in sources.SOURCES.values():
        assert source.base.startswith("https://")
        assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in source.files.values())


# --- the real thing


@pytest.mark.skipif(
    not (REAL / "cifar-100-binary.tar.gz").is_file() or not os.environ.get("FEDDROP_DATA"),
    reason="FEDDROP_DATA does not name a folder with cifar-100-binary.tar.gz",
)
def test_real_cifar100(monkeypatch):
    monkeypatch.setenv("FEDDROP_DATA", str(REAL))
    real = data.load_dataset("cifar100", train_limit=5000, progress=False)
    assert real.train_x.shape == (5000, 3, 32, 32)
    assert real.test_x.shape == (10_000, 3, 32, 32)
    assert real.train_y.bincount().tolist() == [50] * 100
    assert real.test_y.bincount().tolist() == [100] * 100
    assert real.class_names[:3] == ("apple", "aquarium_fish", "baby")
    assert len(set(real.class_names)) == 100
    # Neighbouring pixels of photographs agree; of misread bytes they would not.
    x = real.test_x[:500]
    assert np.corrcoef(x[..., :-1].flatten(), x[..., 1:].flatten())[0, 1] > 0.9

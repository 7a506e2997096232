"""The quickstart runs in a real kernel and shows what it promises; the widgets allocate what their sliders say."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import feddrop
from feddrop.explore.cell import START, solve
from feddrop.explore.widgets import picture_of

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """The notebook after all its cells ran, in an empty folder."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    book = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    folder = tmp_path_factory.mktemp("quickstart")
    client.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return book, folder


def outputs(book, start: str) -> list[dict]:
    """What is displayed below the code cell with this text."""
    (cell,) = [one for one in book.cells if one.cell_type == "code" and start in one.source]
    return [one.data for one in cell.outputs if "data" in one]


def test_it_trains_compares_and_allocates(quickstart):
    book, folder = quickstart
    assert all(cell.get("execution_count") for cell in book.cells if cell.cell_type == "code")
    assert (folder / "runs" / "dropout" / "report.html").exists()
    assert len(feddrop.load_run(folder / "runs" / "dropout").rounds) == 12
    assert "Dataset" in outputs(book, "load_dataset")[0]["text/html"]
    table, *figures, where = outputs(book, "records = feddrop.run")
    assert "12/12" in table["text/html"]
    assert len(figures) == 2
    assert all("<svg" in figure["image/svg+xml"] for figure in figures)
    assert "runs/dropout/report.html" in where["text/markdown"]
    assert any("image/svg+xml" in data for data in outputs(book, "accuracy_figure([read_log"))
    table = outputs(book, "feddrop.compare")[-1]["text/html"]
    assert table.count("accuracy") == 2
    assert "undecided" in table
    assert outputs(book, "split = feddrop.allocate")[0]["text/html"].count("<tr>") == 11
    assert "application/vnd.jupyter.widget-view+json" in outputs(book, "explore_cell")[0]


def test_the_stored_notebook_names_no_machine(quickstart):
    text = (EXAMPLES / "quickstart.ipynb").read_text()
    assert "/home/" not in text
    assert "/tmp/" not in text
    assert len(text) < 500_000


class Kernel:
    """A Jupyter kernel that runs one cell at a time.

    Args:
        folder: its current folder.
    """

    def __init__(self, folder: Path) -> None:
        jupyter = pytest.importorskip("jupyter_client.manager")
        self.manager, self.client = jupyter.start_new_kernel(cwd=str(folder), env=dict(os.environ))

    def run(self, code: str, interrupt_after: str = "") -> list[dict]:
        """What a cell displays; the kernel is interrupted once a display contains a text."""
        number, found = self.client.execute(code), []
        while True:
            message = self.client.get_iopub_msg(timeout=300)
            if message["parent_header"].get("msg_id") != number:
                continue
            content = message["content"]
            if content.get("execution_state") == "idle":
                return found
            found.append(content)
            if interrupt_after and interrupt_after in str(content):
                self.manager.interrupt_kernel()
                interrupt_after = ""

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path):
    one = Kernel(tmp_path)
    yield one
    one.close()


def test_an_interrupted_run_is_kept_and_resumed(kernel, tmp_path):
    kernel.run(
        "import feddrop\n"
        'data = feddrop.Data("digits", devices=2, train_limit=60)\n'
        "config = feddrop.RunConfig(rounds=2000, data=data)"
    )
    cell = "records = feddrop.run(config, 'runs/a', overwrite=True)"
    told = kernel.run(cell, interrupt_after="2/2000")[-1]
    kept = len(feddrop.load_run(tmp_path / "runs" / "a").rounds)
    assert 2 <= kept < 2000
    assert told["ename"] == "StoppedError"
    assert told["traceback"] == [  # one line, without our code
        f"Interrupted. Stopped after round {kept} of 2000. Continue with feddrop.resume('runs/a'). "
        "Report: runs/a/report.html"
    ]
    assert (tmp_path / "runs" / "a" / "report.html").is_file()

    told = kernel.run("feddrop.resume('runs/a')", interrupt_after=f"{kept + 2}/2000")[-1]
    more = len(feddrop.load_run(tmp_path / "runs" / "a").rounds)
    assert more >= kept + 2
    assert f"Stopped after round {more} of" in told["evalue"]

    told = kernel.run(cell, interrupt_after="1/2000")[-1]  # the cell can be run again: from the start
    again = len(feddrop.load_run(tmp_path / "runs" / "a").rounds)
    assert f"Stopped after round {again} of" in told["evalue"]
    assert again < more


def test_an_interrupted_loop_is_kept_and_resumed(kernel, tmp_path):
    """The interrupt arrives in the body of the loop, while the run is suspended."""
    found = kernel.run(
        "import feddrop, time\n"
        'config = feddrop.RunConfig(rounds=2000, data=feddrop.Data("digits", devices=2, train_limit=60))\n'
        "for record in feddrop.Run(config, 'runs/loop'):\n"
        "    print('round', record.round, flush=True)\n"
        "    time.sleep(60 if record.round == 2 else 0)",
        interrupt_after="round 2",
    )
    assert found[-1]["ename"] == "KeyboardInterrupt"
    told = "Stopped after round 2 of 2000. Continue with feddrop.resume('runs/loop'). Report: runs/loop/report.html"
    assert told in "".join(one.get("text", "") for one in found)
    assert (tmp_path / "runs" / "loop" / "report.html").is_file()


def test_widgets_in_a_kernel(kernel):
    kernel.run("import feddrop\nbox = feddrop.explore_cell()")
    (shown,) = [one["data"] for one in kernel.run("box") if "data" in one]
    assert "application/vnd.jupyter.widget-view+json" in shown
    (model,) = [one["text"] for one in kernel.run("print(box.children[0].children[2].model_id)") if "text" in one]
    moved = {"method": "update", "state": {"value": 0.01}, "buffer_paths": []}  # as the browser sends it
    message = kernel.client.session.msg("comm_msg", {"comm_id": model.strip(), "data": moved})
    kernel.client.shell_channel.send(message)
    assert "Infeasible" in str(kernel.run("print(box.children[1].value)"))


def test_a_moved_slider_allocates_anew():
    pytest.importorskip("ipywidgets")
    box = feddrop.explore_cell(EXAMPLES / "cell.toml")
    controls, picture = box.children
    named = {one.description: one for one in controls.children}
    before = picture.value
    named["Deadline (s)"].value = 6.0
    assert picture.value != before
    radio = {**START["radio"], "deadline_s": 6.0}
    assert "6 s</text>" in picture.value
    named["Deadline (s)"].value = 0.01
    assert "Infeasible" in picture.value
    named["Deadline (s)"].value = 6.0
    named["Scheme"].value = "equal"
    mine = feddrop.explore_cell()
    mine.children[0].children[2].value = 6.0
    found = next(one for one in solve({**START, "radio": radio})["schemes"] if one["name"] == "exact")
    assert f"Objective {found['charged']:.5g}" in mine.children[1].value
    assert picture_of({**START, "radio": radio}) == mine.children[1].value
    assert np.isfinite(found["charged"])


def test_a_scheme_that_is_not_shown_is_named_until_another_is_chosen(tmp_path):
    pytest.importorskip("ipywidgets")
    (tmp_path / "cell.toml").write_text('[radio]\nscheme = "primal-dual"\nenergy_budget_j = 300.0\n')
    controls, picture = feddrop.explore_cell(tmp_path / "cell.toml").children
    assert "scheme, primal-dual, is not shown" in picture.value
    next(one for one in controls.children if one.description == "Scheme").value = "equal"
    assert "primal-dual" not in picture.value


def test_without_widgets_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(feddrop.ConfigError, match=r"pip install 'feddrop\[notebook\]'.*feddrop explore"):
        feddrop.explore_cell()


def test_a_file_that_is_no_cell_is_refused(tmp_path):
    pytest.importorskip("ipywidgets")
    (tmp_path / "x.toml").write_text("rounds = 3\n")
    with pytest.raises(feddrop.ConfigError, match=r"no \[radio\] table"):
        feddrop.explore_cell(tmp_path / "x.toml")
    with pytest.raises(feddrop.FeddropError, match=r"none\.toml"):
        feddrop.explore_cell(tmp_path / "none.toml")

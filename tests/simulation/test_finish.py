"""How a run ends: the report of a loop, an interrupt, and what a notebook shows."""

from __future__ import annotations

import sys
import types
from contextlib import nullcontext

import pytest

import feddrop
from feddrop.simulation import finish

CONFIG = feddrop.RunConfig(rounds=3, data=feddrop.Data(devices=2, train_limit=40))


class Interrupt:
    """Interrupts after round 2, as Ctrl-C does."""

    def on_round(self, record: feddrop.RoundRecord) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


def test_a_loop_that_ends_writes_the_report(tmp_path):
    run = feddrop.Run(CONFIG, tmp_path / "run", report=True)
    for _ in run:
        assert not (tmp_path / "run" / "report.html").exists()
    assert "3" in (tmp_path / "run" / "report.html").read_text()
    quiet = feddrop.Run(CONFIG, tmp_path / "quiet", report=False)
    assert len(list(quiet)) == 3
    assert not (tmp_path / "quiet" / "report.html").exists()


def test_an_interrupt_keeps_the_run_and_says_how_to_resume(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt) as caught:
        feddrop.run(CONFIG, folder, callbacks=[Interrupt()])
    assert str(caught.value) == (
        f"Stopped after round 2 of 3. Continue with feddrop.resume({str(folder)!r}). Report: {folder / 'report.html'}"
    )
    assert (folder / "report.html").exists()
    assert [record.round for record in feddrop.resume(folder)] == [1, 2, 3]


def test_an_interrupt_before_the_first_round_says_how_to_start_again(tmp_path):
    class Early:
        def on_start(self, run: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"before round 1 was saved.*overwrite=True"):
        feddrop.run(CONFIG, tmp_path / "run", callbacks=[Early()])
    assert len(feddrop.run(CONFIG, tmp_path / "run", overwrite=True)) == 3


def test_an_interrupt_of_the_loop_itself_writes_the_report(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt, match=r"after round 2 of 3\. Continue with feddrop\.resume\("):
        for _ in feddrop.Run(CONFIG, folder, callbacks=[Interrupt()], report=True):
            pass
    assert (folder / "report.html").exists()
    assert [record.round for record in feddrop.resume(folder)] == [1, 2, 3]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, None])
def test_a_loop_whose_body_stops_writes_the_report(tmp_path, caplog, error):
    """The body raises while the run is suspended: the report is written, and a log line says how to resume."""
    folder = tmp_path / "run"

    def loop() -> None:
        for record in feddrop.Run(CONFIG, folder, report=True):
            if record.round == 2 and error:
                raise error
            if record.round == 2:
                break

    with pytest.raises(error) if error else nullcontext():
        loop()
    assert (folder / "report.html").exists()
    assert [one.getMessage() for one in caplog.records if one.name == "feddrop"] == [
        f"Stopped after round 2 of 3. Continue with feddrop.resume({str(folder)!r}). Report: {folder / 'report.html'}"
    ]
    assert [record.round for record in feddrop.resume(folder)] == [1, 2, 3]


def test_a_report_that_cannot_be_written_hides_no_error(tmp_path, caplog, monkeypatch):
    def full(folder: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(finish, "write_report", full)

    def loop() -> None:
        for _ in feddrop.Run(CONFIG, tmp_path / "run", report=True):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        loop()
    assert "The report could not be written: disk full" in caplog.text


def test_without_report_a_stopped_loop_writes_none(tmp_path, caplog):
    for _ in feddrop.Run(CONFIG, tmp_path / "run", report=False):
        break
    assert not (tmp_path / "run" / "report.html").exists()
    assert not [one for one in caplog.records if one.name == "feddrop"]


def test_custom_objects_are_named_in_the_call():
    assert finish.resume_call("runs/a", {"custom": ["network", "loss"]}) == (
        "feddrop.resume('runs/a', model=..., loss=...)"
    )
    assert finish.resume_call("runs/a", {}) == "feddrop.resume('runs/a')"


def test_a_notebook_shows_progress_and_then_figures(tmp_path, monkeypatch):
    """A stand-in keeps what would be displayed; examples/quickstart.ipynb runs in a real kernel."""
    shown: list[object] = []
    cell = types.SimpleNamespace(update=shown.append)

    def display(what: object, **_: object) -> object:
        shown.append(what)
        return cell

    stand_in = types.SimpleNamespace(HTML=str, Markdown=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", stand_in)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    feddrop.run(CONFIG, tmp_path / "run")
    assert [str(one)[:4] for one in shown[:4]] == ["<pre"] * 4  # at the start, and after each round
    assert "3/3" in str(shown[3])
    assert all("<svg" in figure._repr_svg_() for figure in shown[4:-1])
    assert len(shown[4:-1]) == 2  # accuracy and loss
    assert str(shown[-1]) == f"Report: `{tmp_path / 'run' / 'report.html'}`"

def paper(
    names: list[str] | None = None,
    /,
    *,
    scale: str = "cpu",
    results: Path = Path("results"),
    work: Path = Path("runs/paper"),
    out: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    device: str = "cpu",
    train: bool = True,
) -> None:
    """Repeat the paper: list its tables, figures and claims, run one by name, or run all.

    Parameters
    ----------
    names:
        Names from the list, or all; without any, the list is shown.
    scale:
        cpu (two cores, hours), paper (days, with --device cuda) or smoke (embedded data, a minute).
    results:
        Folder of finished runs; what is in it is not trained again.
    work:
        Folder of runs under way; a killed command goes on from here.
    out:
        Folder of the page. Default: the scale's folder in the work folder.
    workers:
        Runs side by side, one thread each. Default: 2; with --ray as many as the cluster has CPUs.
    ray:
        Train on a Ray instead of this machine's cores: --ray for one that RAY_ADDRESS names or that is started here,
        --ray HOST:PORT or --ray auto for a cluster. All its machines must see the work folder.
    device:
        Where networks are trained, e.g. cuda.
    train:
        Train what is missing; with --no-train it is shown as not run.
    """
    from rich.markdown import Markdown

    from feddrop.cli.folders import writable
    from feddrop.cli.sweeps import address_of
    from feddrop.errors import one_of, within
    from reproduction.experiments import EXPERIMENTS
    from reproduction.framework.console import overview, run, verdicts
    from reproduction.framework.scales import NAMES

    one_of("scale", scale, NAMES)
    if workers is not None:
        within("workers", workers, 1, 1024)
    for name in names or []:
        one_of("experiment", name, [*(experiment.name for experiment in EXPERIMENTS), "all"])
    screen = Screen()
    if not names:
        screen.print(overview(scale, results, work))
        return
    page, judged = run(
        [] if names == ["all"] else names,
        scale_name=scale,
        results=results,
        work=work,
        out=writable(out or work / scale),
        workers=workers if workers or ray is not None else 2,
        train=train,
        device=device,
        console=screen,
        ray=ray if ray is None else address_of(ray),
    )
    screen.print(verdicts(judged) if names == ["all"] else Markdown(page.read_text(encoding="utf-8")))
    say(f"Page: {page}")

"""Several processes compute what one would: same batches, same noise, same gradients; and they leave cleanly."""

import json
import os
import re
import signal
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import tiny_training as tiny
import train_together
from argrad.training import RunFolder, World, train

pytestmark = pytest.mark.slow

SCRIPT = Path(train_together.__file__)
CASES = {
    "direct-auto": {"estimator": "direct", "epsilon": "auto"},
    "direct-auto-odd-batches": {"estimator": "direct", "epsilon": "auto", "batch_size": 7},
    "direct-bits-decay": {
        "estimator": "direct",
        "latent": "bits",
        "variables": 4,
        "epsilon": 1.0,
        "epsilon_decay": 0.1,
    },
    "direct-categoricals-stochastic": {"estimator": "direct", "variables": 2, "binarize": "stochastic"},
    "exact-one-example-in-the-last-batch": {"estimator": "exact", "batch_size": 5, "values": 6, "revive_until": 3},
    "direct-auto-one-example-in-the-last-batch": {"estimator": "direct", "epsilon": "auto", "batch_size": 5},
    "relax-one-example-in-the-last-batch": {"estimator": "relax", "batch_size": 5},
    "relax-odd-batches-stochastic": {"estimator": "relax", "batch_size": 7, "binarize": "stochastic"},
    "rebar": {"estimator": "rebar"},
    "rebar-one-example-in-the-last-batch": {"estimator": "rebar", "batch_size": 5, "prior": "learnt"},
    "reinforce-moving-average": {"estimator": "reinforce", "samples": 1, "batch_size": 5},
    "reinforce-leave-one-out": {"estimator": "reinforce", "samples": 3, "batch_size": 7},
    "gumbel-softmax": {"estimator": "gumbel-softmax", "temperature_decay": 0.01, "kl_warmup": 20},
    "gumbel-rao": {"estimator": "gumbel-rao", "batch_size": 5},
    "local-expectation": {"estimator": "local-expectation", "variables": 2},
    "arm": {"estimator": "arm", "latent": "bits", "variables": 4},
    "disarm": {"estimator": "disarm", "latent": "bits", "variables": 4, "batch_size": 5},
}
"""21 examples: batches of 8 end in one of 5, batches of 7 are whole, batches of 5 end in one of 1, an idle process."""
STEPS = 50


def launch(jobs: list[dict], path: Path, processes: int = 2) -> "subprocess.Popen[str]":
    """Start torchrun on some jobs."""
    path.write_text(json.dumps(jobs))
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone")
    return tiny.start(str(SCRIPT), path, launcher=launcher)


def finish(process: "subprocess.Popen[str]", seconds: float = 300) -> str:
    """Wait for a clean end, and return what was printed."""
    try:
        output, errors = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert "terminate" not in errors
    return output


def job(case: dict, **more) -> dict:
    per_epoch = -(-21 // case.get("batch_size", 8))
    return {"settings": asdict(tiny.settings(**case, epochs=-(-STEPS // per_epoch) + 1)), **more}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> Path:
    """What each of two processes saw, in every case."""
    path = tmp_path_factory.mktemp("together")
    jobs = [
        job(case, record=str(path / f"{name}.{double}"), double=double)
        for name, case in CASES.items()
        for double in (False, True)
    ]
    finish(launch(jobs, path / "jobs.json"))
    return path


@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("name", CASES)
def test_two_processes_compute_what_one_does(records, name, double):
    alone = train_together.run(job(CASES[name], double=double), World())
    both = [torch.load(f"{records}/{name}.{double}.{rank}") for rank in range(2)]
    assert len(alone["losses"]) > STEPS
    close = 1e-9 if double else 1e-5
    for record in both:
        torch.testing.assert_close(record["losses"], alone["losses"], atol=close, rtol=close)
        torch.testing.assert_close(dict(record["estimator"]), dict(alone["estimator"]), atol=close, rtol=close)
        for expected, gradients in zip(alone["gradients"][:STEPS], record["gradients"], strict=False):
            for entry, gradient in expected.items():
                # The estimator's own parameters descend the square of the gradient: bigger terms, coarser rounding.
                own = 10 if entry.startswith("estimator") and not double else 1
                torch.testing.assert_close(gradients[entry], gradient, atol=own * close, rtol=own * close)
    first, second = both
    assert first["module"].keys() == second["module"].keys()
    for entry in first["module"]:  # to the last bit, or they would drift apart
        assert torch.equal(first["module"][entry], second["module"][entry]), entry


def test_they_leave_cleanly_20_times_out_of_20(tmp_path):
    for turn in range(20):
        settings = tiny.settings(epochs=3, estimator="relax")
        folder = tiny.new_folder(tmp_path / str(turn), settings)
        finish(launch([{"settings": asdict(settings), "folder": str(folder.path)}], tmp_path / "jobs.json"), 120)
        assert folder.read_state()["at"]["epoch"] == 3
        assert sorted(entry.name for entry in folder.path.iterdir()) == [
            ".lock",
            "config.json",
            "metrics.jsonl",
            "model.safetensors",
            "state.pt",
        ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_under_torchrun_and_resumed_by_any_number_of_processes(tmp_path, number):
    settings = tiny.settings(epochs=8, estimator="direct", epsilon="auto")
    whole = train(tiny.make_task(settings), settings.loop())
    tiny.new_folder(tmp_path / "run", settings)
    jobs = [
        {"settings": asdict(settings), "folder": str(tmp_path / "run"), "seconds": 0.2, "record": str(tmp_path / "r")}
    ]
    process = launch(jobs, tmp_path / "jobs.json")
    assert process.stdout is not None
    while "step 7" not in process.stdout.readline():
        assert process.poll() is None, process.communicate()
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    stops = [torch.load(f"{tmp_path / 'r'}.{rank}")["stopped"] for rank in range(2)]
    assert stops[0] == stops[1]
    assert re.fullmatch(r"stopped in epoch \d after \d+ steps", stops[0])
    state = RunFolder.open(tmp_path / "run").read_state()["at"]
    assert 8 <= state["step"] < 24
    # On with three processes for a while, then one.
    process = launch(jobs, tmp_path / "jobs.json", processes=3)
    while f"step {state['step'] + 4}" not in process.stdout.readline():
        assert process.poll() is None, process.communicate()
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    assert state["step"] < RunFolder.open(tmp_path / "run").read_state()["at"]["step"] < 24
    trained = train(tiny.make_task(settings), settings.loop(), folder=RunFolder.open(tmp_path / "run"))
    assert trained.epoch == 8
    torch.testing.assert_close(trained.best, whole.best, atol=1e-5, rtol=1e-5)
    for row, expected in zip(trained.history, whole.history, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)


def test_a_run_of_one_goes_on_with_two_to_the_same_end(tmp_path):
    settings = tiny.settings(epochs=4, estimator="rebar", checkpoint_seconds=0.0)
    whole = train(tiny.make_task(settings), settings.loop())
    folder = tiny.new_folder(tmp_path / "run", settings)
    task = tiny.Hooked(tiny.make_task(settings), lambda step: signal.raise_signal(signal.SIGINT) if step == 4 else None)
    with pytest.raises(train_together.Interrupted):
        train(task, settings.loop(), folder=folder)
    job = {"settings": asdict(settings), "folder": str(folder.path), "record": str(tmp_path / "r")}
    finish(launch([job], tmp_path / "jobs.json"))
    ends = [torch.load(f"{tmp_path / 'r'}.{rank}")["module"] for rank in range(2)]
    for end in ends:
        torch.testing.assert_close(dict(end), whole.best, atol=1e-5, rtol=1e-5)


def test_one_process_under_torchrun(tmp_path):
    settings = tiny.settings()
    folder = tiny.new_folder(tmp_path / "run", settings)
    finish(launch([{"settings": asdict(settings), "folder": str(folder.path)}], tmp_path / "jobs.json", processes=1))
    train(tiny.make_task(settings), settings.loop(), folder=tiny.new_folder(tmp_path / "alone", settings))
    assert tiny.everything(folder.path) == tiny.everything(tmp_path / "alone")

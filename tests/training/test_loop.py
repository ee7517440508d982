"""A run that is stopped anywhere and resumed is the run that was not; the best epoch is kept; trouble is reported."""

import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

import tiny_training as tiny
from argrad.models.discrete_vae.run import load_run, train_run
from argrad.training import BrokenFile, Diverged, Interrupted, LoopSettings, RunFolder, loop, train
from argrad.training.files import read_tensors

RUNS = {
    "direct-auto": {"estimator": "direct", "epsilon": "auto"},
    "direct-decay": {"estimator": "direct", "epsilon": 1.0, "epsilon_decay": 0.1, "decay_every": 2, "kl_warmup": 4},
    "relax": {"estimator": "relax"},
    "reinforce-moving-average": {"estimator": "reinforce", "samples": 1},
    "gumbel-stochastic-bits": {"estimator": "gumbel-softmax", "temperature_decay": 0.1, "binarize": "stochastic"},
    "rebar-bits-learnt-prior": {"estimator": "rebar", "latent": "bits", "variables": 3, "prior": "learnt"},
    "exact-revived": {"estimator": "exact", "values": 6, "revive_until": 2},
}


@pytest.fixture(autouse=True)
def one_thread():
    """Sums come out the same in this process and in those it starts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def interrupt_at(step: int, number: int = signal.SIGINT):
    return lambda now: signal.raise_signal(number) if now == step else None


def resume(path: Path, **arguments):
    folder = RunFolder.open(path)
    settings = tiny.TrainSettings(**folder.config)
    return train(tiny.make_task(settings), settings.loop(), folder=folder, **arguments)


# ------------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("name", RUNS)
def test_stopped_at_any_step_and_resumed_is_the_same_run(tmp_path, name):
    settings = tiny.settings(**RUNS[name])
    whole = train(tiny.make_task(settings), settings.loop(), folder=tiny.new_folder(tmp_path / "whole", settings))
    expected = tiny.everything(tmp_path / "whole")
    assert whole.step == 6
    for step in range(6):
        path = tmp_path / str(step)
        task = tiny.Hooked(tiny.make_task(settings), interrupt_at(step))
        if step < 5:  # the last step ends the run
            with pytest.raises(Interrupted, match=f"stopped in epoch {1 + (step + 1) // 3} after {step + 1} steps"):
                train(task, settings.loop(), folder=tiny.new_folder(path, settings))
        else:
            train(task, settings.loop(), folder=tiny.new_folder(path, settings))
        trained = resume(path)
        assert tiny.everything(path) == expected
        assert tiny.without_seconds(vars(trained)) == tiny.without_seconds(vars(whole))


def test_stopped_at_every_step_of_one_run(tmp_path):
    settings = tiny.settings(estimator="relax")
    whole = train(tiny.make_task(settings), settings.loop())
    tiny.new_folder(tmp_path / "run", settings)
    for step in range(5):
        task = tiny.Hooked(tiny.make_task(settings), interrupt_at(step))
        with pytest.raises(Interrupted):
            train(task, settings.loop(), folder=RunFolder.open(tmp_path / "run"))
    trained = resume(tmp_path / "run")
    assert tiny.without_seconds(vars(trained)) == tiny.without_seconds(vars(whole))


def test_how_often_it_saves_does_not_change_the_run(tmp_path):
    rare, often = (tiny.settings(checkpoint_seconds=seconds) for seconds in (tiny.NEVER, 0.0))
    train(tiny.make_task(rare), rare.loop(), folder=tiny.new_folder(tmp_path / "rare", rare))
    written = []
    folder = tiny.new_folder(tmp_path / "often", often)
    original = folder.write

    def write(state, *arguments):
        written.append(state["at"]["step"])
        original(state, *arguments)

    folder.write = write
    train(tiny.make_task(often), often.loop(), folder=folder)
    assert written == [1, 2, 3, 4, 5, 6]
    rare_run, often_run = tiny.everything(tmp_path / "rare"), tiny.everything(tmp_path / "often")
    for run in (rare_run, often_run):
        del run["state"]["config"]
    assert rare_run == often_run


def test_layers_that_draw_on_their_own_resume_too(tmp_path):
    settings = tiny.settings(estimator="exact")

    def task():
        made = tiny.make_task(settings)
        made.module.encoder.append(torch.nn.Dropout(0.5))
        return made

    whole = train(task(), settings.loop())
    with pytest.raises(Interrupted):
        train(tiny.Hooked(task(), interrupt_at(1)), settings.loop(), folder=tiny.new_folder(tmp_path / "run", settings))
    torch.rand(3)
    trained = train(task(), settings.loop(), folder=RunFolder.open(tmp_path / "run"))
    assert tiny.without_seconds(vars(trained)) == tiny.without_seconds(vars(whole))


def test_a_finished_run_is_left_as_it_is(tmp_path):
    settings = tiny.settings()
    train(tiny.make_task(settings), settings.loop(), folder=tiny.new_folder(tmp_path / "run", settings))
    before = tiny.everything(tmp_path / "run")
    watcher = tiny.Watcher()
    assert resume(tmp_path / "run", progress=watcher).step == 6
    assert watcher.started == [(6, 6)]
    assert watcher.steps == []
    assert tiny.everything(tmp_path / "run") == before


@pytest.mark.parametrize("missing", ["metrics.jsonl", "model.safetensors"])
def test_a_run_killed_between_its_last_two_files_gets_them_on_resuming(tmp_path, missing):
    settings = tiny.settings()
    train(tiny.make_task(settings), settings.loop(), folder=tiny.new_folder(tmp_path / "run", settings))
    before = tiny.everything(tmp_path / "run")
    (tmp_path / "run" / missing).unlink()
    resume(tmp_path / "run")
    assert tiny.everything(tmp_path / "run") == before


def test_more_epochs_go_on_as_if_they_had_been_asked_for_at_once(tmp_path):
    short, long = tiny.settings(epochs=2), tiny.settings(epochs=4)
    train(tiny.make_task(short), short.loop(), folder=tiny.new_folder(tmp_path / "short", short))
    train(tiny.make_task(long), long.loop(), folder=tiny.new_folder(tmp_path / "long", long))
    RunFolder.open(tmp_path / "short").change(epochs=4)
    resume(tmp_path / "short")
    assert tiny.everything(tmp_path / "short") == tiny.everything(tmp_path / "long")


def test_a_changed_learning_rate_is_obeyed(tmp_path):
    settings = tiny.settings(epochs=1)
    train(tiny.make_task(settings), settings.loop(), folder=tiny.new_folder(tmp_path / "run", settings))
    RunFolder.open(tmp_path / "run").change(epochs=2, learning_rate=1e-9)
    task, changed = tiny.make_task(settings), tiny.settings(epochs=2, learning_rate=1e-9)
    before = read_tensors(tmp_path / "run" / "model.safetensors")[0]["encoder.1.weight"]
    train(task, changed.loop(), folder=RunFolder.open(tmp_path / "run"))
    torch.testing.assert_close(task.module.state_dict()["encoder.1.weight"], before, atol=1e-7, rtol=0)


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    settings = tiny.settings(epochs=1)
    train(tiny.make_task(settings), settings.loop(), folder=tiny.new_folder(tmp_path / "run", settings))
    before = {entry.name: entry.read_bytes() for entry in (tmp_path / "run").iterdir()}
    fewer = tiny.make_task(settings, tiny.images(train=20))
    with pytest.raises(BrokenFile, match=r"state\.pt was made with 21 training examples and the data now has 20"):
        train(fewer, settings.loop(), folder=RunFolder.open(tmp_path / "run"))
    wider = tiny.make_task(tiny.settings(hidden=6))
    with pytest.raises(BrokenFile, match=r"state\.pt does not fit the model \(size mismatch") as caught:
        train(wider, settings.loop(), folder=RunFolder.open(tmp_path / "run"))
    assert "\n" not in str(caught.value)
    assert {entry.name: entry.read_bytes() for entry in (tmp_path / "run").iterdir()} == before


def test_a_broken_checkpoint_is_refused_and_nothing_is_written(tmp_path):
    settings = tiny.settings(epochs=1)
    train(tiny.make_task(settings), settings.loop(), folder=tiny.new_folder(tmp_path / "run", settings))
    state = tmp_path / "run" / "state.pt"
    state.write_bytes(state.read_bytes()[:-1])
    before = {entry.name: entry.read_bytes() for entry in (tmp_path / "run").iterdir()}
    with pytest.raises(BrokenFile, match=r"state\.pt is cut short or altered"):
        resume(tmp_path / "run")
    assert {entry.name: entry.read_bytes() for entry in (tmp_path / "run").iterdir()} == before


def test_a_full_disk_ends_the_run_and_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    settings = tiny.settings(checkpoint_seconds=0.0)
    train(tiny.make_task(settings), settings.loop(), folder=tiny.new_folder(tmp_path / "whole", settings))
    folder = tiny.new_folder(tmp_path / "run", settings)
    original, calls = os.fsync, []

    def fail_late(descriptor):
        calls.append(descriptor)
        if len(calls) > 8:
            raise OSError(28, "No space left on device")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fail_late)
    with pytest.raises(OSError, match="No space left on device"):
        train(tiny.make_task(settings), settings.loop(), folder=folder)
    monkeypatch.undo()
    assert 0 < folder.read_state()["at"]["step"] < 6
    resume(tmp_path / "run")
    assert tiny.everything(tmp_path / "run") == tiny.everything(tmp_path / "whole")


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_file_taking_its_place_does_no_harm(tmp_path, monkeypatch, after):
    settings = tiny.settings(checkpoint_seconds=0.0)
    train(tiny.make_task(settings), settings.loop(), folder=tiny.new_folder(tmp_path / "whole", settings))
    expected = tiny.everything(tmp_path / "whole")
    original = os.replace
    for crash in range(100):
        path, calls = tmp_path / str(crash), []
        folder = tiny.new_folder(path, settings)

        def replace(source, target, calls=calls, crash=crash):
            calls.append(target)
            if len(calls) > crash and not after:
                raise Crash
            original(source, target)
            if len(calls) > crash:
                raise Crash

        monkeypatch.setattr(os, "replace", replace)
        try:
            train(tiny.make_task(settings), settings.loop(), folder=folder)
        except Crash:
            resumed = True
        else:
            resumed = False
        monkeypatch.undo()
        resume(path)
        assert tiny.everything(path) == expected
        if not resumed:
            break
    assert 12 <= crash < 100


def test_only_one_training_at_a_time_in_a_folder(tmp_path):
    settings = tiny.settings()
    folder = tiny.new_folder(tmp_path / "run", settings)
    second = tiny.make_task(settings)

    def train_too(step):
        with pytest.raises(ValueError, match="another process is training"):
            train(second, settings.loop(), folder=RunFolder.open(folder.path))

    train(tiny.Hooked(tiny.make_task(settings), train_too), settings.loop(), folder=folder)
    resume(tmp_path / "run")


# ------------------------------------------------------------------------------------------ best epoch and early stop


class Scripted(tiny.Hooked):
    """A task whose validation losses are given."""

    def __init__(self, task, losses):
        super().__init__(task, lambda step: None)
        self.losses_to_come = losses
        self.weights = []

    def validate(self, generator):
        loss = self.losses_to_come[len(self.weights)]
        self.weights.append(self.task.module.state_dict()["encoder.1.weight"].clone())
        return {"loss": loss}


def test_the_module_ends_with_the_weights_of_the_best_epoch(tmp_path):
    settings = tiny.settings(epochs=5)
    task = Scripted(tiny.make_task(settings), [5.0, 3.0, 4.0, 3.0, 9.0])
    trained = train(task, settings.loop(), folder=tiny.new_folder(tmp_path / "run", settings))
    assert (trained.best_epoch, trained.best_loss, trained.epoch) == (2, 3.0, 5)
    assert [row["loss"] for row in trained.history] == [5.0, 3.0, 4.0, 3.0, 9.0]
    assert torch.equal(task.module.state_dict()["encoder.1.weight"], task.weights[1])
    saved, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    assert torch.equal(saved["encoder.1.weight"], task.weights[1])
    assert not torch.equal(task.weights[4], task.weights[1])


@pytest.mark.parametrize(("patience", "epochs"), [(0, 6), (1, 3), (2, 6), (3, 6)])
def test_patience(patience, epochs):
    settings = tiny.settings(epochs=6, patience=patience)
    trained = train(Scripted(tiny.make_task(settings), [5.0, 4.0, 4.5, 3.0, 3.5, 3.2]), settings.loop())
    assert trained.epoch == epochs


def test_a_run_out_of_patience_stays_so_when_resumed(tmp_path):
    settings = tiny.settings(epochs=6, patience=1)
    task = Scripted(tiny.make_task(settings), [5.0, 4.0, 4.5])
    train(task, settings.loop(), folder=tiny.new_folder(tmp_path / "run", settings))
    assert resume(tmp_path / "run").epoch == 3


# ----------------------------------------------------------------------------------------------------------- divergence


def poison(task, step: int, number: float = math.nan):
    """Make a parameter a non-number at the start of a step."""

    def at_step(now):
        if now == step:
            with torch.no_grad():
                task.module.decoder[1].weight[0, 0] = number

    return tiny.Hooked(task, at_step)


@pytest.mark.parametrize("seconds", [0.0, tiny.NEVER])
@pytest.mark.parametrize("estimator", ["exact", "direct", "relax"])
def test_divergence_keeps_the_last_good_checkpoint_and_says_so(tmp_path, seconds, estimator):
    settings = tiny.settings(epochs=4, checkpoint_seconds=seconds, estimator=estimator)
    folder = tiny.new_folder(tmp_path / "run", settings)
    good = 4 if seconds == 0 else 3
    kept = rf"{folder.path} keeps the last good checkpoint, after {good} steps"
    with pytest.raises(Diverged, match=rf"in epoch 2; lower the learning rate; {kept}"):
        train(poison(tiny.make_task(settings), 4), settings.loop(), folder=folder)
    at = folder.read_state()["at"]
    assert at["step"] == good
    assert all(tensor.isfinite().all() for tensor in folder.read_state()["module"].values())
    assert all(tensor.isfinite().all() for tensor in read_tensors(folder.path / "model.safetensors")[0].values())
    assert [row["epoch"] for row in folder.read_metrics()] == [1]


def test_scores_that_become_nan_are_divergence_too(tmp_path):
    """They end in a loss that is not a number."""
    settings = tiny.settings()
    task = tiny.make_task(settings)

    def at_step(now):
        if now == 4:
            with torch.no_grad():
                task.module.encoder[1].weight.fill_(math.nan)

    with pytest.raises(Diverged, match=r"in epoch 2; lower the learning rate"):
        train(tiny.Hooked(task, at_step), settings.loop())


def test_a_learning_rate_that_is_far_too_high_diverges():
    settings = tiny.settings(epochs=30, learning_rate=1e30)
    with pytest.raises(Diverged, match="lower the learning rate"):
        train(tiny.make_task(settings), settings.loop())


def test_a_mistake_in_the_task_is_not_called_divergence():
    def wrong(step):
        raise ValueError("a mistake")

    settings = tiny.settings()
    with pytest.raises(ValueError, match="a mistake"):
        train(tiny.Hooked(tiny.make_task(settings), wrong), settings.loop())


# ---------------------------------------------------------------------------------------- progress, signals, randomness


def test_progress_hears_of_every_step_in_order(monkeypatch):
    monkeypatch.setattr(loop, "REPORT_SECONDS", -1.0)
    settings, watcher = tiny.settings(epochs=3), tiny.Watcher()
    trained = train(tiny.make_task(settings), settings.loop(), progress=watcher)
    assert watcher.started == [(9, 0)]
    steps = [step for step, _, _ in watcher.steps]
    assert steps == sorted(steps)
    assert set(steps) == set(range(1, 10))
    assert [epoch for _, epoch, _ in watcher.steps] == [1] * 4 + [2] * 4 + [3] * 4
    assert all(math.isfinite(loss) for _, _, loss in watcher.steps)
    # After the last batch of an epoch the loss so far is the loss of the epoch.
    shown = [loss for step, _, loss in watcher.steps if step % 3 == 0]
    assert shown[::2] == shown[1::2] == [row["train_loss"] for row in trained.history]
    assert watcher.epochs == trained.history


def test_progress_is_not_told_too_often_but_always_of_the_end():
    settings, watcher = tiny.settings(epochs=3), tiny.Watcher()
    train(tiny.make_task(settings), settings.loop(), progress=watcher)
    assert len(watcher.steps) <= 5
    assert watcher.steps[-1][0] == 9


def test_global_randomness_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    settings = tiny.settings(binarize="stochastic")
    train(tiny.make_task(settings), settings.loop())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    train(tiny.make_task(settings), settings.loop())


def test_the_seed_decides():
    def weights(seed, noise):
        torch.manual_seed(noise)
        return without_seconds_of(tiny.settings(seed=seed))

    def without_seconds_of(settings):
        return tiny.without_seconds(vars(train(tiny.make_task(settings), settings.loop())))

    assert weights(0, 1) == weights(0, 2)
    assert weights(0, 1) != weights(1, 1)


def test_signal_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    settings = tiny.settings()
    train(tiny.make_task(settings), settings.loop())
    with pytest.raises(Interrupted):
        train(tiny.Hooked(tiny.make_task(settings), interrupt_at(1, signal.SIGTERM)), settings.loop())
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_an_echo_of_ctrl_c_is_one_ctrl_c_and_an_impatient_one_is_obeyed(tmp_path, monkeypatch):
    settings = tiny.settings()

    def twice(step):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        train(tiny.Hooked(tiny.make_task(settings), twice), settings.loop())
    monkeypatch.setattr(loop, "IMPATIENCE_SECONDS", -1.0)
    folder = tiny.new_folder(tmp_path / "run", settings)
    with pytest.raises(KeyboardInterrupt):
        train(tiny.Hooked(tiny.make_task(settings), twice), settings.loop(), folder=folder)
    assert not folder.has_state()
    resume(tmp_path / "run")


def test_trains_outside_the_main_thread():
    settings, trained = tiny.settings(), []
    thread = threading.Thread(target=lambda: trained.append(train(tiny.make_task(settings), settings.loop())))
    thread.start()
    thread.join()
    assert trained[0].step == 6


def test_without_a_folder_an_interruption_is_still_an_interruption():
    settings = tiny.settings()
    with pytest.raises(Interrupted):
        train(tiny.Hooked(tiny.make_task(settings), interrupt_at(0)), settings.loop())


DRIVER = """
import sys, time
import tiny_training as tiny
from argrad.training import Interrupted, RunFolder, train

folder = RunFolder.open(sys.argv[1])
settings = tiny.TrainSettings(**folder.config)

def slowly(step):
    print(step, flush=True)
    time.sleep(float(sys.argv[2]))

try:
    train(tiny.Hooked(tiny.make_task(settings), slowly), settings.loop(), folder=folder)
except Interrupted as stopped:
    print(stopped, flush=True)
    sys.exit(130)
"""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    settings = tiny.settings(epochs=3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train(tiny.make_task(settings), settings.loop(), folder=tiny.new_folder(path, settings))
    torch.set_num_threads(threads)
    return tiny.everything(path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_asked_to_stop_saves_and_can_go_on(tmp_path, uninterrupted, number):
    tiny.new_folder(tmp_path / "run", tiny.settings(epochs=3))
    process = tiny.start(DRIVER, tmp_path / "run", 0.2)
    assert process.stdout is not None
    while process.stdout.readline() != "4\n":
        assert process.poll() is None
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "stopped in epoch 2 after 5 steps" in output
    assert errors == ""
    assert RunFolder.open(tmp_path / "run").read_state()["at"]["step"] == 5
    resume(tmp_path / "run")
    assert tiny.everything(tmp_path / "run") == uninterrupted


def test_a_second_ctrl_c_stops_at_once(tmp_path, uninterrupted):
    tiny.new_folder(tmp_path / "run", tiny.settings(epochs=3))
    process = tiny.start(DRIVER, tmp_path / "run", 30)
    assert process.stdout is not None
    while process.stdout.readline() != "0\n":
        assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(loop.IMPATIENCE_SECONDS + 0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - began < 20
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    resume(tmp_path / "run")
    assert tiny.everything(tmp_path / "run") == uninterrupted


# --------------------------------------------------------------------------------------------------- through train_run


def test_train_run_and_load_run(tmp_path):
    settings = tiny.settings(data="digits", epochs=1, batch_size=500)
    module, trained = train_run(settings, tiny.new_folder(tmp_path / "run", settings))
    assert trained.epoch == 1
    loaded, again, images = load_run(tmp_path / "run")
    assert again == settings
    assert images.name == "digits"
    assert not loaded.training
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


def test_load_run_refuses_what_is_not_whole(tmp_path):
    settings = tiny.settings(data="digits", epochs=1, batch_size=500)
    folder = tiny.new_folder(tmp_path / "run", settings)
    with pytest.raises(ValueError, match="no model yet"):
        load_run(folder.path)
    train_run(settings, folder)
    model = folder.path / "model.safetensors"
    contents = model.read_bytes()
    model.write_bytes(contents[:-5])
    with pytest.raises(BrokenFile, match=r"model\.safetensors is cut short or altered"):
        load_run(folder.path)
    train_run(settings, RunFolder.open(folder.path))
    load_run(folder.path)
    (folder.path / "config.json").write_text(
        (folder.path / "config.json").read_text().replace('"hidden": 5', '"hidden": 6')
    )
    with pytest.raises(BrokenFile, match=r"model\.safetensors does not belong to .*config\.json"):
        load_run(folder.path)


def test_a_run_stopped_in_its_first_epoch_has_no_model_yet(tmp_path):
    settings = tiny.settings(data="digits", batch_size=500)
    folder = tiny.new_folder(tmp_path / "run", settings)

    class Stopper(tiny.Watcher):
        def step(self, done, epoch, loss):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped in epoch 1 after 1 steps"):
        train_run(settings, folder, progress=Stopper())
    with pytest.raises(ValueError, match="no model yet"):
        load_run(folder.path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"patience": -1},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"checkpoint_seconds": -1.0},
        {"checkpoint_seconds": math.nan},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LoopSettings(**wrong)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("estimator", ["direct", "relax"])
def test_on_a_gpu_it_resumes_to_the_last_bit_and_leaves_global_randomness_alone(tmp_path, estimator):
    settings = tiny.settings(estimator=estimator, binarize="stochastic")
    before = torch.get_rng_state(), torch.cuda.get_rng_state()

    def task(device="cuda"):
        made = tiny.make_task(settings, tiny.images("stochastic").to(device))
        made.module.encoder.append(torch.nn.Dropout(0.5))
        made.module.to(device)
        return made

    whole = train(task(), settings.loop())
    for path in (tmp_path / "gpu", tmp_path / "cpu"):
        stopped = tiny.Hooked(task(), interrupt_at(1))
        with pytest.raises(Interrupted):
            train(stopped, settings.loop(), folder=tiny.new_folder(path, settings))
    trained = train(task(), settings.loop(), folder=RunFolder.open(tmp_path / "gpu"))
    assert tiny.without_seconds(vars(trained)) == tiny.without_seconds(vars(whole))
    assert train(task("cpu"), settings.loop(), folder=RunFolder.open(tmp_path / "cpu")).step == 6
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(torch.cuda.get_rng_state(), before[1])

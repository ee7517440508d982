import errno
import hashlib
import io
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from argrad.data import CATALOGUE, DownloadFailed, Source, available, check, get
from argrad.data.catalogue import File
from loopback import Server


def below(folder: Path) -> list[str]:
    """Everything below a folder, temporary files included."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_download_comes_whole_and_is_not_repeated(tiny: Source, server: Server, folders: tuple[Path, Path]) -> None:
    assert [report.state for report in check("tiny")] == ["missing"]
    (report,) = get("tiny")
    path = folders[0] / "tiny" / "tiny.bin"
    assert (report.state, report.path, report.ok) == ("downloaded", path, True)
    assert path.read_bytes() == server.files["/tiny.bin"]
    assert below(folders[0]) == ["tiny", "tiny/tiny.bin"]
    (report,) = get("tiny")
    assert report.state == "right"
    assert "is there and right" in str(report)
    assert server.asked == ["/tiny.bin"]


def test_without_a_chosen_folder_the_cache_is_used(
    tiny: Source, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARGRAD_DATA")
    assert get("tiny")[0].path == folders[1] / "tiny" / "tiny.bin"


def test_a_chosen_folder_that_is_read_only_is_passed_over(
    tiny: Source, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders[0].mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != folders[0])
    assert get("tiny")[0].path == folders[1] / "tiny" / "tiny.bin"
    monkeypatch.setattr("os.access", lambda path, mode: False)
    shutil.rmtree(folders[1])
    with pytest.raises(DownloadFailed, match="set ARGRAD_DATA to a folder of yours"):
        get("tiny")


def test_progress_ends_at_the_whole(tiny: Source) -> None:
    calls: list[tuple[str, int, int]] = []
    get("tiny", progress=lambda *call: calls.append(call))
    assert calls[-1] == ("tiny.bin", 200_000, 200_000)
    done = [call[1] for call in calls]
    assert done == sorted(done)
    assert len(done) > 2


def test_pooch_is_silent_and_its_logger_is_left_as_it_was(tiny: Source, capfd: pytest.CaptureFixture[str]) -> None:
    import pooch

    level = pooch.get_logger().level
    get("tiny")
    assert capfd.readouterr() == ("", "")
    assert pooch.get_logger().level == level != logging.ERROR


def test_a_wrong_file_is_not_kept(tiny: Source, server: Server, folders: tuple[Path, Path]) -> None:
    server.files["/tiny.bin"] = b"something else"
    with pytest.raises(DownloadFailed) as caught:
        get("tiny")
    text = str(caught.value)
    assert "tiny.bin" in text
    assert f"expected 200,000 bytes with {tiny.files[0].hash}" in text
    assert f"14 bytes with sha256:{hashlib.sha256(b'something else').hexdigest()} came" in text
    assert "nothing was kept" in text
    assert "\n" not in text
    assert not folders[0].exists()
    assert not folders[1].exists()


def test_a_cut_connection_leaves_nothing(tiny: Source, server: Server, folders: tuple[Path, Path]) -> None:
    server.cut.add("/tiny.bin")
    with pytest.raises(
        DownloadFailed, match=r"tiny.bin .*the connection was cut after 1?\d\d?,?\d* bytes.*nothing was kept"
    ):
        get("tiny")
    assert not folders[0].exists()
    server.cut.clear()
    assert get("tiny")[0].ok


def test_no_server_and_no_such_file(tiny: Source, server: Server, folders: tuple[Path, Path]) -> None:
    with pytest.raises(DownloadFailed, match="the server answered 404 Not Found"):
        get("tiny", mirror=f"{server.address}/elsewhere")
    with pytest.raises(DownloadFailed, match="no connection"):
        get("tiny", mirror="http://127.0.0.1:1")
    assert not folders[0].exists()


def test_the_next_address_is_tried(
    tiny: Source, server: Server, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/broken/tiny.bin"] = b"wrong"
    server.files["/cut/tiny.bin"] = server.files["/tiny.bin"]
    server.cut.add("/cut/tiny.bin")
    bases = ("/absent", "/broken", "/cut", "")
    file = replace(tiny.files[0], urls=tuple(f"{server.address}{base}/tiny.bin" for base in bases))
    monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, files=(file,)))
    assert get("tiny")[0].state == "downloaded"
    assert server.asked == [f"{base}/tiny.bin" for base in bases]
    assert below(folders[0]) == ["tiny", "tiny/tiny.bin"]


def test_too_little_space_is_found_before_the_download(
    tiny: Source, server: Server, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1_000))
    with pytest.raises(DownloadFailed, match=r"no space for tiny.bin .*200,000 bytes are needed and 1,000 are free"):
        get("tiny")
    assert server.asked == []
    assert not folders[0].exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_during_the_download(
    tiny: Source, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    class Full(io.FileIO):
        def write(self, data: Any, /) -> int:
            if self.tell() > 100_000:
                raise OSError(code, "No space left on device")
            return super().write(data) or 0

    monkeypatch.setattr("pooch.downloaders.open", lambda path, mode: Full(path, "w"), raising=False)
    with pytest.raises(
        DownloadFailed, match=r"no space for tiny.bin in .*make room, or set ARGRAD_DATA.*nothing was kept"
    ):
        get("tiny")
    assert not folders[0].exists()


def test_an_interrupted_download_leaves_nothing(tiny: Source, folders: tuple[Path, Path]) -> None:
    def interrupt(file: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get("tiny", progress=interrupt)
    assert not folders[0].exists()


def test_a_wrong_file_on_disk_is_reported_and_only_replaced_on_request(
    tiny: Source, server: Server, folders: tuple[Path, Path]
) -> None:
    path = folders[1] / "tiny" / "tiny.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    (report,) = check("tiny")
    assert (report.state, report.path, report.ok) == ("wrong", path, False)
    assert f"expected {tiny.files[0].hash}, found sha256:{hashlib.sha256(b'mine').hexdigest()}" in str(report)
    with pytest.raises(DownloadFailed, match=r"is wrong: expected .*move it away, or ask for it to be replaced"):
        get("tiny")
    assert server.asked == []
    server.cut.add("/tiny.bin")
    with pytest.raises(DownloadFailed, match="the connection was cut"):
        get("tiny", replace=True)
    assert path.read_bytes() == b"mine"
    server.cut.clear()
    assert get("tiny", replace=True)[0].path == path
    assert check("tiny")[0].state == "right"
    assert below(folders[1]) == ["tiny", "tiny/tiny.bin"]


def test_md5_and_other_wrappings(tiny: Source, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"packed otherwise"
    path = folders[0] / "tiny" / "tiny.bin.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(body)
    file = replace(tiny.files[0], repacked=(("tiny.bin.gz", f"md5:{hashlib.md5(body).hexdigest()}"),))
    monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, files=(file,)))
    assert [(report.state, report.path) for report in check("tiny")] == [("right", path)]
    assert get("tiny")[0].state == "right"


def test_data_without_an_address_says_where_to_put_it(folders: tuple[Path, Path]) -> None:
    with pytest.raises(DownloadFailed, match=r"chardata.mat has no download address.*put it into .*omniglot-28"):
        get("omniglot-28")


def test_digits_need_nothing() -> None:
    assert get("digits") == []
    assert check("digits") == []


def test_the_list(tiny: Source) -> None:
    lines = {line.name: line for line in available()}
    assert list(lines) == list(CATALOGUE)
    assert lines["digits"].present
    assert (lines["tiny"].present, lines["tiny"].where, lines["tiny"].size) == (False, None, 200_000)
    path = get("tiny")[0].path
    assert path is not None
    after = {line.name: line for line in available()}["tiny"]
    assert (after.present, after.where, after.downloadable) == (True, path.parent, True)
    assert not lines["omniglot-28"].downloadable


def test_half_a_data_set_is_not_present(
    tiny: Source, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    get("tiny")
    more = File("more.bin", 1, "sha256:0", ("http://127.0.0.1:1/more.bin",))
    monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, files=(*tiny.files, more)))
    assert not {line.name: line for line in available()}["tiny"].present
    assert [report.state for report in check("tiny")] == ["right", "missing"]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "binarized-mnist", "omniglot"])
def test_the_real_files_are_right(data_root: Path, name: str) -> None:
    if not (data_root / name).is_dir():
        pytest.skip(f"$ARGRAD_DATA has no {name}")
    assert [str(report) for report in check(name) if not report.ok] == []

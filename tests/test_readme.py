"""What the documentation shows works: every code block of README.md, CONTRIBUTING.md and docs/*.md is run, in order.

- ```` ```python ```` blocks are executed, those written as a `>>>` session are compared with the output they show.
- In ```` ```console ```` and ```` ```bash ```` blocks, lines that start with `$ argrad ` are run, and nothing else.
- The word `no-run` after the language leaves a block out: ```` ```python no-run ````.

The blocks of one file share a namespace and a temporary folder, as they would for a reader who follows along. Each is a
test of its own, named by file and line; run alone, it runs the blocks before it first.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from command_line import run_argrad

ROOT = Path(__file__).resolve().parent.parent
SECONDS_PER_COMMAND = 300
PLAIN = re.compile(r"[^|&;<>$`*?~{}()\\]+")
"""A command in which the shell has nothing to do but to split it."""
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^ *(?P=ticks)`* *$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    path: Path
    line: int  # of the first line inside the block, counted from 1
    language: str
    body: str

    @property
    def place(self) -> str:
        return f"{self.path.name}:{self.line}"


@dataclass
class Page:
    """One documentation file being followed: what its blocks have defined, and how each of them went."""

    folder: Path
    module: types.ModuleType
    outcomes: dict[int, BaseException | None] = field(default_factory=dict)


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    blocks = []
    for fence in FENCE.finditer(text):
        language, *words = fence["info"].split() or [""]
        if language in ("python", "console", "bash") and "no-run" not in words:
            line = text.count("\n", 0, fence.start("body")) + 1
            blocks.append(Block(path, line, language, textwrap.dedent(fence["body"])))
    return blocks


def commands_of(block: Block) -> list[tuple[int, str]]:
    """The commands to run with their line numbers; a backslash at the end of a line continues the command."""
    commands = []
    lines = iter(enumerate(block.body.splitlines(), start=block.line))
    for number, text in lines:
        if text.startswith("$ argrad "):
            command = text.removeprefix("$ ")
            while command.endswith("\\"):
                command = command[:-1] + next(lines, (0, ""))[1].strip()
            commands.append((number, command))
    return commands


def run_python(block: Block, page: Page) -> None:
    if block.body.lstrip().startswith(">>>"):
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        test = doctest.DocTestParser().get_doctest(
            block.body, page.module.__dict__, block.place, str(block.path), block.line - 1
        )
        output: list[str] = []
        failed, _ = doctest.DocTestRunner(verbose=False, optionflags=flags).run(
            test, out=output.append, clear_globs=False
        )
        assert not failed, "".join(output)
    else:
        # The empty lines in front make line numbers in a traceback those of the page.
        source = "\n" * (block.line - 1) + block.body
        exec(compile(source, str(block.path), "exec", dont_inherit=True), page.module.__dict__)


def run_commands(block: Block, page: Page) -> None:
    for line, command in commands_of(block):
        # The page about installing shows that the command is there; elsewhere it need not import torch each time.
        if PLAIN.fullmatch(command) and block.path.name != "install.md":
            code, said = run_argrad(shlex.split(command, comments=True)[1:], page.folder, SECONDS_PER_COMMAND)
        else:
            code, said = run_in_shell(command, page.folder)
        assert code == 0, f"{block.path}:{line}: `{command}` exited {code}:\n{said}"


def run_in_shell(command: str, folder: Path) -> tuple[int, str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    child = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS_PER_COMMAND,
    )
    return child.returncode, child.stdout


def run_up_to(block: Block, page: Page) -> None:
    """Run the block, after those before it that have not been run in this process."""
    for each in blocks_of(block.path):
        if each.line not in page.outcomes:
            try:
                (run_python if each.language == "python" else run_commands)(each, page)
                page.outcomes[each.line] = None
            except Exception as error:
                page.outcomes[each.line] = error
        failure = page.outcomes[each.line]
        if each.line == block.line:
            if failure is not None:
                raise failure
            return
        if failure is not None:
            pytest.fail(f"{block.place} cannot be reached: the block before it at {each.place} fails", pytrace=False)


def documentation() -> list[Path]:
    top = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [path for path in (*top, *sorted(ROOT.glob("docs/**/*.md"))) if path.exists()]


def every_block() -> list[object]:
    return [
        # One group per file: with --dist loadgroup its blocks go to the same worker and none is run twice.
        pytest.param(block, id=f"{path.relative_to(ROOT)}:{block.line}", marks=pytest.mark.xdist_group(path.name))
        for path in documentation()
        for block in blocks_of(path)
        if block.language == "python" or commands_of(block)
    ]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Page]]:
    pages = {}
    for path in documentation():
        module = types.ModuleType("documentation_" + re.sub(r"\W", "_", str(path.relative_to(ROOT))))
        sys.modules[module.__name__] = module  # dataclasses and pickle look up the module a class says it is from
        pages[path] = Page(tmp_path_factory.mktemp(path.stem), module)
    yield pages
    for page in pages.values():
        del sys.modules[page.module.__name__]


@pytest.mark.parametrize("block", every_block())
def test_block_runs(block: Block, pages: dict[Path, Page], monkeypatch: pytest.MonkeyPatch) -> None:
    page = pages[block.path]
    monkeypatch.chdir(page.folder)
    run_up_to(block, page)

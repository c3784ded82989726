import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import click
import pytest
from commands import told

from benchmarks.measure.options import WithPresets
from models.catalog import SHIPPED
from vitbn import main as vitbn

ROOT = Path(__file__).parents[1]
LISTED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.split()
PAGES = [name for name in LISTED if (ROOT / name).is_file()]
OF_THEIR_DAY = ("benchmarks/results/studies/", "benchmarks/results/report.md")  # commands as they were given
PROGRAMS = ("python ", "vitbn ", "tritonserver", "make ", "pip ", "pytest ")
NO_COMMANDS = ("serving/launcher.py", "serving/end_with_parent.py")  # take what they pass on
TOOLS = {"source", "curl", "cd", "docker", "envoy", "kill", "prometheus", "prometheus-alertmanager"}


def prose(name: str) -> str:
    return re.sub(r"^```.*?^```", "", (ROOT / name).read_text(), flags=re.DOTALL | re.MULTILINE)


def shell_lines(text: str) -> Iterator[str]:
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from block.replace("\\\n", " ").splitlines()
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from (line.strip() for line in re.findall(r"^ {4,}(\S.*)$", outside, re.MULTILINE) if is_command(line))
    inline = re.findall(r"`([^`]+)`", re.sub(r"^ {4,}.*$", "", outside, flags=re.MULTILINE))
    yield from (" ".join(code.split()) for code in inline if is_command(code))


def is_command(text: str) -> bool:
    return text.startswith(PROGRAMS) and len(text.split()) > 1


@cache
def script(path: str) -> click.Command:
    last = ast.parse((ROOT / path).read_text()).body[-1]
    assert isinstance(last, ast.If), f"{path} is no command"
    assert isinstance(last.body[-1], ast.Expr), path
    call = last.body[-1].value
    assert isinstance(call, ast.Call), path
    if isinstance(call.func, ast.Name):
        name = call.func.id
    else:  # vitbn.main(["train", *sys.argv[1:]], ...)
        assert ast.unparse(call.func) == "vitbn.main", path
        assert isinstance(call.args[0], ast.List), path
        name = ast.literal_eval(call.args[0].elts[0])
    command = getattr(import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert isinstance(command, click.Command), path
    return command


def parse(command: click.Command, words: list[str], line: str) -> None:
    """Files need not exist."""
    if isinstance(command, WithPresets) and words[:1] == ["--preset"] and words[1] in command.presets:
        return parse(command.preset(words[1]), words[2:], line)
    context = click.Context(command, info_name=command.name, **command.context_settings)
    options, left, _ = command.make_parser(context).parse_args(list(words))
    if isinstance(command, click.Group):
        if not left and any(options.values()):  # `--list`
            return None
        assert left, line
        sub = command.get_command(context, left[0])
        assert sub is not None, f"{line}: no command {left[0]}"
        return parse(sub, words[words.index(left[0]) + 1 :], line)
    if context.ignore_unknown_options:  # Triton's own
        check_server([word for word in words if word.partition("=")[0] not in options_of(command)], line)
    assert not left, f"{line}: {left} is too much"
    for parameter in command.params:
        given = options.get(parameter.name)
        if isinstance(given, str | tuple | list) and not isinstance(parameter.type, click.Path | click.File):
            assert parameter.name
            parameter.type_cast_value(context, given)
        asked = isinstance(parameter, click.Argument) or parameter.name in options
        assert not (parameter.required and asked and not given), f"{line}: {parameter.name} is missing"
        if parameter.required and isinstance(parameter, click.Option):
            assert given is not None, f"{line}: {parameter.opts[0]} is missing"
    return None


def check(line: str) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    program, *rest = words
    if program == "python" and rest[0].startswith(("tests/", "docs/")):
        assert (ROOT / rest[0]).is_file(), line
    elif program == "python":
        parse(script(rest[0]), rest[1:], line)
    elif program == "vitbn" and len(rest) == 1:  # the name of a command
        assert rest[0] in vitbn.list_commands(click.Context(vitbn)), line
    elif program == "vitbn":
        parse(vitbn, rest, line)
    elif program == "tritonserver":
        check_server(rest, line)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in rest if "=" not in word} <= set(targets), line
    elif program == "pip":
        section = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
        extras = re.findall(r"^(\w+) = \[", section.split("\n[")[0], re.MULTILINE)
        for named in re.findall(r"\[([\w,]+)\]", line):
            assert set(named.split(",")) <= set(extras), line
    else:
        assert program in TOOLS or program.startswith("pytest"), line


def check_server(words: list[str], line: str) -> None:
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= server_options(), line


@cache
def server_options() -> set[str]:
    done = subprocess.run(
        [sys.executable, "-m", "serving.launcher", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    options = set(re.findall(r"--[\w-]+", done.stdout + done.stderr))
    assert "--model-repository" in options, done.stderr
    return options | {"--open-control"}  # the launcher's own


def options_of(command: click.Command) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(command, WithPresets):
        return own.union(*(options_of(each) for each in map(command.preset, command.presets) if each is not command))
    if not isinstance(command, click.Group):
        return own
    context = click.Context(command)
    below = (command.get_command(context, name) for name in command.list_commands(context))
    return own.union(*(options_of(each) for each in below if each))


@cache
def known_options() -> set[str]:
    folders = ("models", "export", "serving", "clients", "clients/web", "benchmarks")
    scripts = [path for folder in folders for path in sorted((ROOT / folder).glob("*.py"))]
    commands = [path.relative_to(ROOT).as_posix() for path in scripts if "\nif __name__ ==" in path.read_text()]
    ours = set[str]().union(*(options_of(script(path)) for path in commands if path not in NO_COMMANDS))
    others = {"--async", "--hypothesis-profile"}  # perf_analyzer's, pytest's
    return ours | options_of(vitbn) | server_options() | others


@pytest.mark.parametrize("name", [name for name in PAGES if not name.startswith(OF_THEIR_DAY)])
def test_every_command_line_parses(name: str) -> None:
    for line in shell_lines((ROOT / name).read_text()):
        try:
            check(line)
        except click.UsageError as error:
            pytest.fail(f"{name}: {line}: {error.format_message()}")


@pytest.mark.parametrize("name", [name for name in PAGES if not name.startswith("benchmarks/results/")])
def test_every_option_that_a_page_names_exists(name: str) -> None:
    codes = re.findall(r"`([^`]+)`", prose(name))
    named = {option for code in codes for option in re.findall(r"(?<!\S)--[a-z][\w-]*", code)}
    assert named <= known_options(), f"{name}: {sorted(named - known_options())}"


@pytest.mark.parametrize(
    "line",
    [
        "python export/to_onnx.py --fuse-batchnorm",
        "python export/to_onnx.py --precision fp8",
        "python benchmarks/no_such.py",
        "vitbn repository forget vitbn",
        "make coffee",
        "pip install '.[nonsense]'",
        "tritonserver --model-repositories triton_repo",
    ],
)
def test_a_wrong_command_line_is_noticed(line: str) -> None:
    with pytest.raises((AssertionError, click.UsageError, FileNotFoundError)):
        check(line)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", (ROOT / name).read_text()):
        page = (ROOT / name).parent / target if target else ROOT / name
        assert page.exists(), f"{name}: {target}"
        assert not anchor or anchor in anchors(page), f"{name}: {target}#{anchor}"


@pytest.mark.parametrize("name", PAGES)
def test_every_python_block_imports_what_there_is(name: str) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE):
        for statement in ast.walk(ast.parse(block)):
            if isinstance(statement, ast.ImportFrom) and statement.module:
                module = import_module(statement.module)
                assert all(hasattr(module, each.name) for each in statement.names), f"{name}: {ast.unparse(statement)}"


def test_the_page_of_all_commands_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import write_cli; print(write_cli.page(), end='')"],
        cwd=ROOT / "docs",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (ROOT / "docs" / "cli.md").read_text(), "run: python docs/write_cli.py"


def test_front_pages_stay_short() -> None:
    shown = [line for line in (ROOT / "README.md").read_text().splitlines() if not line.startswith("<!-- ")]
    assert len(shown) <= 110
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 50


def hand_written_words(text: str) -> int:
    """Words outside blocks of code, addresses and generated tables; tables by hand count."""
    for generated in (r"<!-- table .*?<!-- end -->", r"^```.*?^```", r"^ {4}\S[^\n]*$"):
        text = re.sub(generated, "", text, flags=re.DOTALL | re.MULTILINE)
    return sum(bool(re.search(r"\w", word)) for word in re.sub(r"\]\([^)]*\)", "]", text).split())


def test_hand_written_pages_stay_short() -> None:
    """Without the changelog, which only grows."""
    pages = {name for name in PAGES if "/" not in name or name.startswith("docs/")} - {"docs/cli.md", "CHANGELOG.md"}
    assert {"README.md", "docs/claims.md"} <= pages
    words = {name: hand_written_words((ROOT / name).read_text()) for name in sorted(pages)}
    assert sum(words.values()) <= 9900, words


def test_what_counts_as_a_hand_written_word() -> None:
    text = "One [two](a.md) - three\n\n    four --five\n```sh\nsix\n```\n<!-- table x -->\n| 7 |\n<!-- end -->\n| 8 |\n"
    assert hand_written_words(text) == 4


def table(name: str, heading: str) -> list[list[str]]:
    section = (ROOT / name).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip(" *") for cell in row.strip("|").split("|")] for row in rows[2:]]


@pytest.mark.slow
def test_the_work_after_each_rewrite_is_what_the_rewrites_leave() -> None:
    from export.checkpoint_to_onnx import Form, export
    from export.compiler.passes import PASSES
    from models.catalog import shipped
    from models.checkpoints.checkpoint import load

    left = []
    for name, digits in (("vitbn", 2), ("vitbn-tiny", 3)):
        steps = export(load(shipped(name)), Form("all")).steps
        left.append([f"{step.macs / 1e6:.{digits if step.macs < 1e6 else 2}f}" for step in steps])
    expected = [[f"`{name}`", *macs] for name, *macs in zip(PASSES, *left, strict=True)]
    assert [[row[0], *row[2:]] for row in table("docs/results.md", "What each rewrite saves")] == expected


def test_the_shipped_checkpoints_are_those_that_vitbn_models_lists() -> None:
    _, printed = told(vitbn, "models")
    listed = [line.split() for line in printed.splitlines()]
    rows = [row for row in listed[1:] if len(row) == 8]
    assert len(rows) == len(SHIPPED)
    expected = [[f"`{name}`", *cells] for name, _, *cells in rows]
    assert table("docs/usage.md", "Export") == expected

"""The program `vitbn`: one screen of help, examples that parse, suggestions."""

import re
from collections.abc import Iterator
from functools import partial

import click
import pytest
from commands import told
from test_pages import ROOT, check

from vitbn import BENCHMARKS, COMMANDS, main

SCREEN = 40  # lines
run = partial(told, main)


def test_help_fits_one_screen() -> None:
    code, output = run("--help")
    assert code == 0
    assert output.count("\n") <= SCREEN
    assert max(map(len, output.splitlines())) <= 80
    assert all(f"\n  {name} " in output for name in COMMANDS)


@pytest.mark.parametrize("name", ["serve", "proxy", "infer", "bulk", "probe", "web"])
def test_help_is_short_and_states_every_default(name: str) -> None:
    _, output = run(name, "--help")
    assert output.count("\n") <= 45
    options = re.split(r"\n  (?=--)", output.partition("Options:")[2].partition("\n  --help")[0])[1:]
    silent = [" ".join(each.split()) for each in options if not re.search(r"\[(default:|required\])", each)]
    assert (bool(options), silent) == (True, [])


def test_every_program_of_the_benchmarks_is_a_subcommand_of_bench() -> None:
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} == {*BENCHMARKS, "__init__"}


EXAMPLES = COMMANDS | {f"bench {name}": entry for name, entry in BENCHMARKS.items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_command_shows_an_example_that_parses(name: str) -> None:
    example = f"vitbn {name} {EXAMPLES[name].example}".rstrip()
    check(example)
    code, output = run(*name.split(), "--help")
    assert code == 0
    assert "Example: vitbn" in output
    assert " ".join(output.split()).endswith(example)


def commands(command: click.Command, words: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands below a group, with their words."""
    yield words, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context := click.Context(command)):
            if (below := command.get_command(context, name)) is not None:
                yield from commands(below, f"{words} {name}")


def test_no_path_may_be_empty() -> None:
    options = [(words, each) for words, command in commands(main) for each in command.params]
    paths = [(words, each) for words, each in options if isinstance(each.type, click.Path)]
    assert len(paths) > 50
    for words, each in paths:
        with pytest.raises(click.BadParameter):
            pytest.fail(f"{words} {each.opts}: {each.type.convert('', each, None)}")


def test_a_mistyped_command_suggests_the_nearest() -> None:
    code, output = run("infr", "digit.png")
    assert code == 2
    assert "No such command 'infr'. Did you mean 'infer'?" in output


@pytest.mark.parametrize(("command", "names"), [("export", "'garments', 'garments-cnn'"), ("train", "'dnnbn'")])
def test_a_mistyped_model_suggests_the_nearest(command: str, names: str) -> None:
    code, output = run(command, "--model", "vitbm")
    assert code == 2
    assert f"{names}. Did you mean 'vitbn'?" in " ".join(output.split())


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert run("--version") == (0, f"vitbn {version('vitbn')}\n")
    assert f"## {version('vitbn')}" in (ROOT / "CHANGELOG.md").read_text()

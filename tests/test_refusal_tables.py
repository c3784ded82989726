from pathlib import Path

import click
import pytest
from refusals import check_refused


@click.command()
@click.option("--write", type=Path)
@click.option("--twice", is_flag=True)
def refuses(write: Path | None, twice: bool) -> None:
    if write:
        write.write_text("other")
    if twice:
        click.echo("Error: a", err=True)
    raise click.ClickException("expected 'a b', found c")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("", 2, "found c"),
        ("", 1, "found d"),
        ("", 1, "expected … found d"),
        ("--write new", 1, "found c"),
        ("--write old", 1, "found c"),
        ("--twice", 1, "found c"),
    ],
)
def test_a_row_that_does_not_hold_fails(words: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("mine")
    check_refused(tmp_path, refuses, "", 1, "expected 'a b' … found c")
    with pytest.raises(AssertionError):
        check_refused(tmp_path, refuses, words, code, said)

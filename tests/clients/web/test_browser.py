import os
from pathlib import Path

import pytest
from web_parts import CHROMIUM, MISSING


def test_the_browser_of_the_page_s_tests_is_there() -> None:
    if not Path(CHROMIUM).exists():
        pytest.fail(MISSING, pytrace=False) if os.environ.get("CI") else pytest.skip(MISSING)

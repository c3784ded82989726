import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.proxy.envoy_process import Proxy
from serving.proxy.settings import Settings


@contextmanager
def running_proxy(settings: Settings) -> Iterator[Proxy]:
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:
        proxy = Proxy(settings, Path(folder), Path(folder, "envoy.log"))
        try:
            proxy.start()
            proxy.wait_until_live()
            yield proxy
        finally:
            proxy.stop()

"""A program that ends with its parent: `python -m serving.proxy.child PROGRAM ARGUMENT...`."""

import os
import sys

from serving.launcher import PARENT_VARIABLE, LauncherError, end_with_parent

if __name__ == "__main__":
    try:
        end_with_parent(os.environ.pop(PARENT_VARIABLE, None))
    except LauncherError as error:
        sys.exit(str(error))
    os.execv(sys.argv[1], sys.argv[1:])

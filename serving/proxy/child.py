"""A program that ends with its parent: `python -m serving.proxy.child PARENT PROGRAM ARGUMENT...`."""

import os
import sys

from serving.launcher import LauncherError, end_with_parent

if __name__ == "__main__":
    _, parent, *command = sys.argv
    try:
        end_with_parent(parent)
    except LauncherError as error:
        sys.exit(str(error))
    os.execv(command[0], command)

"""Becomes a program that ends with its parent process: `python end_with_parent.py PARENT_PID PROGRAM ARGUMENT...`."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, program, *arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # this setting survives exec
    if os.getppid() != int(parent):
        sys.exit(f"{program}: the process that started it is gone")
    os.execvp(program, [program, *arguments])

"""Two processes that find each other by files in a directory, and the data that they compare."""

import os
import signal
import sys
import time

SIZE = 4 << 20
"""Number of bytes that each transfer moves."""

LIMIT = 600
"""Number of seconds after which SIGALRM ends this process, which waits for another one."""

signal.alarm(LIMIT)

ROLE, PLACE, DEVICE = sys.argv[1:4]
"""`target` or `initiator`, the directory, and the name of the device."""


def put(name, data):
    path = os.path.join(PLACE, name)
    with open(path + ".part", "wb") as file:
        file.write(data)
    os.rename(path + ".part", path)


def get(name):
    path = os.path.join(PLACE, name)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        return file.read()


def pattern(start):
    """Returns data in which every 251 bytes differ, and each start gives other data."""
    return bytes((start + at * 7 + (at >> 8)) % 251 for at in range(SIZE))


def compare(what, found, due):
    if found != due:
        at = next(at for at in range(SIZE) if found[at] != due[at])
        sys.exit(f"{what}: byte {at} is {found[at]}, and not {due[at]}")
    print(f"{what}: {SIZE} bytes are as they must be", flush=True)


def show_queue_pairs():
    """Prints whether this process has queue pairs of the device."""
    path = f"/sys/class/infiniband/{DEVICE}/ports/1/hw_counters/qps"
    with open(path) as file:
        print("queue pairs:", "some" if int(file.read()) > 0 else "none", flush=True)

"""Adds one to the number in a file, many times, each time under the lock; see tests/php/worker.php.

Usage: python worker.py RECIPE PORT KEY FILE ROUNDS
"""

import random
import sys
import time
from pathlib import Path

from recipes import recipe

TTL_MS = 60_000

_, name, port, key, file, rounds = sys.argv
lock, counter = recipe(name, int(port)), Path(file)
for turn in range(int(rounds)):
    proof = lock.wait(key, TTL_MS)
    if proof is None:
        sys.exit(f"{name} never had its turn in round {turn}")
    number = int(counter.read_text() or 0)
    time.sleep(random.uniform(0, 0.001))
    counter.write_text(str(number + 1))
    if not lock.release(key, proof):
        sys.exit(f"{name} lost its lock in round {turn}")

"""One step of a recipe, in a process of its own.

Usage: python recipe.py RECIPE PORT acquire KEY TTL_MS   prints the proof, or `held`
       python recipe.py RECIPE PORT wait KEY TTL_MS      the same, when it is its turn
       python recipe.py RECIPE PORT release KEY PROOF    prints `released`, or `lost`
"""

import sys

from recipes import recipe

_, name, port, step, key, last = sys.argv
lock = recipe(name, int(port))
if step == "release":
    print("released" if lock.release(key, last) else "lost")
else:
    print(getattr(lock, step)(key, int(last)) or "held")

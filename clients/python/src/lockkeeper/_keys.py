"""The keys of a claim, one or several, and what is asked about them."""

import json
import re
import urllib.parse
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, TypedDict, Union, cast

from ._errors import RequestRefused

MOST_BYTES = 32768  # of a body that the service reads
LONGEST_NUMBER = 2 ** 53 - 1  # of a lease
Request = Tuple[str, Optional[Dict[str, Any]]]  # the path and the body


class _Named(TypedDict):
    key: str


class ClaimedKey(_Named, total=False):
    """One of several keys, with its share: `{"key": "gpu", "slots": 8, "units": 3}`."""

    slots: int
    units: int
    shared: bool


Key = Union[str, ClaimedKey]


def path_of(key: str, prefix: str = "/locks/") -> str:
    if not isinstance(key, str):
        raise RequestRefused("%r is no key: a key is a text, and several are a list" % (key,))
    # A proxy would resolve the segments, to another key or to a forced release.
    if re.search(r"(^|/)\.{0,2}(/|\Z)|[\ud800-\udfff]", key):
        raise RequestRefused("%r is no key: it is a text, without segments that are empty, . or .." % (key,))
    return prefix + urllib.parse.quote(key, safe="/")


class OneKey:
    """A key by itself."""

    is_several = False

    def __init__(self, key: str) -> None:
        self.keys, self.name, self._path = [key], repr(key), path_of(key)

    def acquire(self, options: Dict[str, Any]) -> Request:
        return self._path, options

    def refresh(self, numbers: Mapping[str, int], ttl_ms: int) -> Request:
        return self._path + "/refresh", {"ttl_ms": ttl_ms, "fencing_token": numbers[self.keys[0]]}

    def release(self, numbers: Mapping[str, int]) -> Request:
        """The request that releases the leases with these numbers, or without them whatever the token has."""
        return self._path + ("?fencing_token=%d" % numbers[self.keys[0]] if numbers else ""), None

    def leases(self, body: Dict[str, Any]) -> List[Dict[str, Any]]:
        """The leases in a grant."""
        return [dict(body, key=self.keys[0])]

    def are_in(self, body: Dict[str, Any]) -> bool:
        """Whether a grant is one of these keys."""
        return bool(body.get("key") == self.keys[0])


class SeveralKeys:
    """Several keys at once: a lease of each, or none."""

    is_several = True

    def __init__(self, keys: Sequence[Key]) -> None:
        self._claimed = [dict(key) if isinstance(key, Mapping) else {"key": key} for key in keys]
        self.keys = [cast(str, one.get("key")) for one in self._claimed]
        self.name = ", ".join(map(repr, self.keys))
        for key in self.keys:
            path_of(key)
        # Else they could be acquired, and neither renewed nor released.
        longest = self.refresh({key: LONGEST_NUMBER for key in self.keys}, LONGEST_NUMBER)[1]
        if len(json.dumps(longest)) > MOST_BYTES:
            raise RequestRefused("the %d keys are too long together: a request has at most %d bytes"
                                 % (len(self.keys), MOST_BYTES))

    def acquire(self, options: Dict[str, Any]) -> Request:
        return "/locks", dict(options, keys=self._claimed)

    def refresh(self, numbers: Mapping[str, int], ttl_ms: int) -> Request:
        return "/locks/refresh", {"ttl_ms": ttl_ms, "leases": self._named(numbers)}

    def release(self, numbers: Mapping[str, int]) -> Request:
        return "/locks", {"leases": self._named(numbers)}

    def leases(self, body: Dict[str, Any]) -> List[Dict[str, Any]]:
        return cast(List[Dict[str, Any]], body.get("leases", []))

    def are_in(self, body: Dict[str, Any]) -> bool:
        return sorted(one["key"] for one in self.leases(body)) == sorted(self.keys)

    def _named(self, numbers: Mapping[str, int]) -> List[Dict[str, Any]]:
        return [{"key": key, **({"fencing_token": numbers[key]} if numbers else {})} for key in self.keys]


Keys = Union[OneKey, SeveralKeys]


def keys_of(key: Union[str, Sequence[Key]]) -> Keys:
    return SeveralKeys(key) if isinstance(key, (list, tuple)) else OneKey(cast(str, key))

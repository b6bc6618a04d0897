"""Holds a running lockkeeper against openapi.yaml: python run.py target/debug/lockkeeper

Schemathesis makes up requests that the contract allows and requests that it forbids; an answer that
is not as documented is a finding, and any finding fails. Its Python has what requirements.txt lists.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SECONDS = 30
SECRET = "the secret of an API key"

# The checks that are left out, and why.
EXCLUDED = [
    # More is accepted than the schemas allow, because clients send it and the contract says so: `[]`
    # or `null` for no options, "5000" for 5000, any type of content. tests/it/api/bodies.rs has a
    # table of what is accepted and one of what is refused.
    "negative_data_rejection",
    # LOCK and UNLOCK of /terraform/{key} are in `Allow`, and OpenAPI cannot express them. What `Allow`
    # names is in tests/it/api/problems.rs and terraform.rs.
    "allow_header_conformance",
]


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        service, url = start(os.path.abspath(sys.argv[1]), directory)
        try:
            return run(url, narrowed_contract(directory), directory)
        finally:
            service.terminate()
            service.wait()


def start(binary: str, directory: str) -> tuple[subprocess.Popen, str]:
    """Starts the service on a free port with an API key; gives it and its address."""
    settings = os.path.join(directory, "lockkeeper.toml")
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    with open(settings, "w") as file:
        file.write(f"[[api_keys]]\nname = 'all'\nsha256 = '{digest}'\nprefixes = ['']\n")
        file.write("permissions = ['acquire', 'read', 'admin']\n")
        file.write("[limits]\nmax_wait = '20ms'\n")  # Whatever they ask for.
    store = "embedded:" + os.path.join(directory, "data")
    command = ["setpriv", "--pdeathsig", "KILL", binary, "serve", "--config", settings]
    command += ["--store", store, "--listen", "127.0.0.1:0"]
    log = os.path.join(directory, "log")
    with open(log, "w") as file:
        service = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file)
    began = time.monotonic()
    while service.poll() is None and time.monotonic() - began < 20:
        with open(log) as file:
            if found := re.search(r"serving locks on (http://[0-9.:]+)", file.read()):
                return service, found[1]
        time.sleep(0.01)
    service.kill()
    service.wait()
    with open(log) as file:
        sys.exit(f"the service does not serve: {file.read()}")


def narrowed_contract(directory: str) -> str:
    """openapi.yaml, narrowed to what *this* service is sure to accept.

    Limits that can be configured, and rules that no generator understands, are not in the schemas.
    With them `positive_data_acceptance` can be checked: whatever the schemas allow is accepted.
    """
    import yaml

    with open(os.path.join(ROOT, "openapi.yaml")) as file:
        contract = yaml.safe_load(file)
    # Its answer is a stream that does not end; tests/it/hold reads it.
    del contract["paths"]["/hold/{key}"]
    contract["security"] = [{"apiKey": []}]  # This service has one, so it is not optional.
    components = contract["components"]
    letter = "[^\\x00-\\x1f\\x7f-\\x9f./]"
    for name in ("Key", "StateKey"):  # 4 bytes a character.
        key = components["parameters"][name]["schema"]
        key.update(pattern=f"^{letter}+(/{letter}+)?$", maxLength=128)
    acquire = components["schemas"]["AcquireRequest"]["properties"]
    refresh = components["schemas"]["RefreshRequest"]["properties"]
    for properties in (acquire, refresh):
        properties["ttl_ms"].update(minimum=100, maximum=86_400_000)
    acquire["shared"]["enum"] = [False]  # Together with `slots`, `true` is refused.
    del acquire["units"]  # Refused without `slots`, and if they are more.
    acquire["owner"].update(pattern="^[^\\x00-\\x1f\\x7f-\\x9f]*$", maxLength=64)
    several, refreshed, claimed, named = (
        components["schemas"][name]["properties"]
        for name in ("AcquireSeveralRequest", "RefreshSeveralRequest", "ClaimedKey", "NamedLease")
    )
    several["owner"].update(acquire["owner"])
    claimed["shared"]["enum"] = [False]
    del claimed["units"]  # As above.
    for properties in (several, refreshed):
        properties["ttl_ms"].update(minimum=100, maximum=86_400_000)
    listed = components["parameters"]["Keys"]["schema"]
    for key in (claimed["key"], named["key"], listed["items"]):
        key.update(pattern=f"^{letter}+(/{letter}+)?$", maxLength=128)
    for keys in (several["keys"], refreshed["leases"], listed):
        keys["maxItems"] = 1  # Each key once.
    terraform = components["schemas"]["TerraformLockRequest"]
    terraform["additionalProperties"] = False
    for member in terraform["properties"].values():
        member["maxLength"] = 64
    force_release = contract["paths"]["/admin/locks/{key}"]["delete"]["parameters"]
    reason = next(one for one in force_release if one.get("name") == "reason")
    reason["schema"].update(pattern="^[^\\x00-\\x1f\\x7f-\\x9f]*$", maxLength=64)
    # Schemathesis reads the YAML that this answers; for everybody else it is a string.
    served = contract["paths"]["/openapi.yaml"]["get"]["responses"]["200"]["content"]
    served["application/yaml"]["schema"] = {"type": "object"}
    path = os.path.join(directory, "openapi.yaml")
    with open(path, "w") as file:
        yaml.safe_dump(contract, file, allow_unicode=True)
    return path


def run(url: str, contract: str, directory: str) -> int:
    """Gives the exit code of Schemathesis; 0 means no findings."""
    tool = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    command = [sys.executable, tool, "--no-color", "run", contract]
    command += ["--url", url, "--header", f"Authorization: Bearer {SECRET}"]
    command += ["--checks", "all", "--exclude-checks", ",".join(EXCLUDED)]
    command += ["--max-time", str(SECONDS), "--request-timeout", "10", "--continue-on-failure"]
    command += ["--generation-database", "none", "--warnings", "off"]
    return subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())

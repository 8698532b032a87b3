"""Writes the recorder's files without torch. Arguments: RANK:what for ranks that write something else.

`nothing`, `error`, `other-model`, `large` (several frames), `too-large`, `fails` (after recording).
"""

import json
import os
import sys
from pathlib import Path

rank = int(os.environ["RANK"])
what = dict(argument.split(":") for argument in sys.argv[1:]).get(str(rank), "a trace")
settings = json.loads(os.environ["PACELINE_RECORD_SETTINGS"])
assert (settings["rank"], settings["stop"]) == (True, False)
parts = {"forward_s": 0.01 * (rank + 1), "backward_s": 0.02, "optimizer_s": 0.001}
count = 20_000 if what == "large" else 1
tensors = [{"tensor": f"t{number}", "ready_s": 0.01, "bytes": 400} for number in range(count)]
if what == "other-model":
    tensors[0]["tensor"] = "other"
worker = {
    "forward": [{"layer": "all", "duration_s": parts["forward_s"], "tensors": [t["tensor"] for t in tensors]}],
    "gradients": tensors,
    "backward_s": parts["backward_s"],
    "optimizer_s": parts["optimizer_s"],
}
trace = {"format": "paceline-trace", "version": 1, "name": "pretended", "provenance": f"of rank {rank}"}
if what == "too-large":
    trace["provenance"] = "x" * (33 << 20)
trace |= {"batch": 4, "dtype": "float32", "device": "none", "workers": [worker]}
result = {"steps_seen": 9, "error": None, "recorded": settings["steps"], "finished": True}
if what == "error":
    result["error"] = "something is wrong"
else:
    result["summary"] = {**parts, "steps": settings["steps"]}
    Path(settings["output"]).write_text(json.dumps(trace), encoding="utf-8")
if what != "nothing":
    (Path(settings["exchange"]) / "result.json").write_text(json.dumps(result), encoding="utf-8")
print(settings["exchange"])
sys.exit(3 if what == "fails" else 0)

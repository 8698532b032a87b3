"""Make the built-in trace `resnet-50` from a recording.

    paceline record --model resnet50 --batch 32 --name resnet-50 -o recorded.json
    python scripts/make_resnet50_trace.py recorded.json

Tensors, their sizes and order are the real model's, the proportions of layer times those of the recording (on a CPU),
and the whole is scaled to the rate of one V100: 329 images/s at batch 32, published in the DDP benchmark of PyTorch
(pytorch/pytorch, benchmarks/distributed/ddp/README.md, one GPU of a DGX-1). A CPU's own speed would make every network
look free.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import paceline

V100_IMAGES_PER_S = 329.0
TARGET = Path(__file__).parent.parent / "python/paceline/traces/resnet-50.json"


def main() -> None:
    trace = paceline.Trace.read(sys.argv[1]).scaled_to_rate(V100_IMAGES_PER_S)
    document = json.loads(trace.to_json())
    recorded = document["provenance"]
    document["name"] = "resnet-50"
    document["device"] = "V100 (by its rate)"
    document["provenance"] = (
        "torchvision's resnet50 at batch 32: tensors and their order from the model, layer times recorded on a CPU "
        f"({recorded}) and all scaled alike to one V100's published 329 images/s at batch 32 (pytorch/pytorch, "
        "benchmarks/distributed/ddp/README.md); so the total is a V100's, the proportions of layers are a CPU's"
    )
    text = json.dumps(document)
    TARGET.write_text(paceline.Trace.from_json(text.encode(), "resnet-50").to_json() + "\n")
    print(TARGET, paceline.Trace.read(TARGET).summary())


if __name__ == "__main__":
    main()

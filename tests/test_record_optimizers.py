"""Recorded steps of optimizers beside those of `--optimizer`: the same kernels, and the same states."""

import subprocess
import sys

import paceline
import pytest

pytest.importorskip("torch")
SCRIPT = """
import sys, torch, transformers

name, config = sys.argv[1:]
model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_json_file(config)).to("cuda", torch.bfloat16)
all_of = list(model.parameters())
if name == "momentum":
    optimizer = torch.optim.SGD(all_of, lr=1e-4, momentum=0.9, weight_decay=0.1)
elif name == "sgd":
    optimizer = torch.optim.SGD(all_of, lr=1e-4, weight_decay=0.1)
elif name == "adam":
    optimizer = torch.optim.AdamW(all_of, lr=1e-4)
elif name == "adafactor":
    optimizer = transformers.Adafactor(all_of, lr=1e-4, scale_parameter=False, relative_step=False)
else:
    import bitsandbytes as bnb

    kinds = {"adamw-8bit": "AdamW8bit", "paged-adamw-8bit": "PagedAdamW8bit", "paged-adamw": "PagedAdamW32bit"}
    optimizer = getattr(bnb.optim, kinds.get(name, "Lion32bit"))(all_of, lr=1e-4)
ids = torch.randint(0, 4096, (2, 1024), device="cuda")
for _ in range(4):
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CONFIG = """{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "vocab_size": 32000,
"intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8}"""
OF_BITSANDBYTES = ("adamw-8bit", "paged-adamw-8bit", "paged-adamw", "lion")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "momentum", "sgd", "adafactor", *OF_BITSANDBYTES])
def test_a_recorded_optimizer_agrees_with_the_option(name, tmp_path):
    pytest.importorskip("transformers")
    if name in OF_BITSANDBYTES:
        pytest.importorskip("bitsandbytes")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "config.json").write_text(CONFIG)
    words = [sys.executable, "-m", "paceline", "record", "--gpu", "a6000", "-o", "t.json", "--", sys.executable]
    subprocess.run([*words, "train.py", name, "config.json"], check=True, cwd=tmp_path)

    def forecast(file, **options):
        return paceline.simulate(
            str(tmp_path / file), workers=1, gpu="a6000", strategy="native", sharding="none", **options
        )

    recorded = forecast("t.json")
    computed = forecast("config.json", seq=1024, batch=2, precision="bf16", kernels="eager", optimizer=name)
    assert computed.optimizer_s == pytest.approx(recorded.optimizer_s, rel=0.03)
    assert recorded.sharded is not None and computed.sharded is not None
    if name not in ("sgd", "momentum"):
        # Their weight decay makes a list of new gradients, which the options leave out.
        assert computed.sharded.memory.peak_bytes == pytest.approx(recorded.sharded.memory.peak_bytes, rel=0.08)

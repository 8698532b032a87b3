"""Models by name: `org/name` from the local cache of Hugging Face or as a built-in model, and folders."""

import json

import cli
import pytest
from paceline import InvalidArgumentError, simulate
from paceline.catalog.models.config import built_in_configs
from paceline.catalog.models.families import model_of
from paceline.catalog.models.names import resolve

FIELDS = dict(built_in_configs()["llama-3-8b"].fields) | {"architectures": ["LlamaForCausalLM"]}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache as `huggingface_hub` lays it out, empty."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def download(cache, name, revision, reference="main", **fields):
    folder = cache / f"models--{name.replace('/', '--')}"
    file = folder / "snapshots" / revision / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(FIELDS | fields), encoding="utf-8")
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / reference).write_text(revision, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b"),
        ("NousResearch/Meta-Llama-3-8B", "llama-3-8b"),
        ("NousResearch/Llama-2-70b-hf", "llama-2-70b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("Qwen/Qwen3-32B-Instruct", "qwen3-32b"),
        ("Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("mistralai/Mistral-7B-v0.3", "mistral-7b-v0.3"),
        ("TheBloke/Llama-2-70B-GPTQ", "llama-2-70b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("Skywork/Skywork-Reward-V2-Qwen3-8B", "qwen3-8b"),
        ("hugging-quants/Meta-Llama-3.1-405B-BNB-NF4-BF16", "llama-3.1-405b"),
        ("allenai/OLMo-2-1124-13B-SFT", "olmo-2-13b"),
        ("/data/ckpts/olmo3-7b-instruct-sft/step_100", "olmo-3-7b"),
        ("lmsys/vicuna-13b-v1.5", "llama-2-13b"),
    ],
)
def test_names_of_the_hub_stand_for_built_in_models(word, name):
    result = resolve(word)
    assert result.name == name
    known = word.lower() in [spelled for one in result.hub for spelled in (one.lower(), one.lower().partition("/")[2])]
    assert result.notes == (() if known else (f"Assumed the sizes of {name} for {word}",))
    assert model_of(result).notes == result.notes


@pytest.mark.parametrize(
    "word",
    [
        *("microsoft/Phi-4-multimodal-instruct", "nvidia/Llama-3.1-Minitron-4B-Width-Base", "models/llama3-8b-pro"),
        *("deepcogito/cogito-v1-preview-qwen-14B", "Qwen/Qwen3-Coder-480B-A35B-Instruct", "Mapika/GLM-5.2-NVFP4"),
    ],
)
def test_names_that_tell_of_other_sizes_stand_for_nothing(word):
    with pytest.raises(InvalidArgumentError, match="unknown model"):
        resolve(word)


def test_models_of_images_are_their_decoders():
    result = resolve("Qwen/Qwen3-VL-8B-Instruct")
    assert result.name == "qwen3-8b"
    assert result.notes[1] == "Not modeled: the encoder of images of Qwen/Qwen3-VL-8B-Instruct"


def test_every_built_in_model_has_the_published_count():
    for name in ("llama-3.1-8b", "llama-3.1-70b", "yi-34b", "qwen2.5-14b", "qwen3-0.6b", "tinyllama-1.1b"):
        assert model_of(built_in_configs()[name]).parameters == built_in_configs()[name].parameters


def test_the_local_cache_comes_first(cache):
    file = download(cache, "Qwen/Qwen3-32B", "a1b2", num_hidden_layers=2)
    result = resolve("Qwen/Qwen3-32B")
    assert (result.name, result.where, result.fields["num_hidden_layers"]) == ("qwen3-32b", str(file), 2)
    assert result.notes == (f"Read Qwen/Qwen3-32B from {file}",)
    # The built-in name is still the built-in model.
    assert resolve("qwen3-32b").fields["num_hidden_layers"] == 64


def test_main_is_the_revision_that_counts(cache):
    old = download(cache, "me/mine", "0aaa", num_hidden_layers=3)
    download(cache, "me/mine", "0bbb", "pull-1", num_hidden_layers=4)
    assert resolve("me/mine").where == str(old)
    (cache / "models--me--mine" / "refs" / "main").write_text("../../../../etc", encoding="utf-8")
    assert resolve("me/mine").fields["num_hidden_layers"] in (3, 4)


def test_caches_are_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE")
    for variable, below in (
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ):
        for other in ("HF_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(other, raising=False)
        monkeypatch.setenv(variable, str(tmp_path / variable))
        file = download(tmp_path / variable / below, "me/mine", "0aaa")
        assert resolve("me/mine").where == str(file)


def test_unknown_names_have_near_ones_and_a_remedy(cache):
    remedy = r"qwen3-32b \(list: .* hf download Qwen/Qwen3-32 config.json"
    with pytest.raises(InvalidArgumentError, match=rf"unknown model 'Qwen/Qwen3-32'[\s\S]*{remedy}"):
        resolve("Qwen/Qwen3-32")
    for command in ("simulate", "advise"):
        text = cli.said(command, "Qwen/Qwen3-32", "--gpu", "h100", "--gpus", "8", code=2)
        assert "hf download Qwen/Qwen3-32 config.json" in text
    assert resolve("resnet-50") is None and resolve("nothing") is None


def test_a_folder_is_its_config_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    with pytest.raises(InvalidArgumentError, match=r"my-model: the folder has no config\.json"):
        resolve("./my-model")
    (tmp_path / "my-model" / "config.json").write_text(json.dumps(FIELDS), encoding="utf-8")
    assert resolve("./my-model").name == "my-model"
    words = {"gpu": "h100", "workers": 2, "seq": 512}
    assert simulate("./my-model", **words).iteration_s == simulate("my-model/config.json", **words).iteration_s
    assert simulate("./my-model@h100:seq=512", workers=2).iteration_s == simulate("./my-model", **words).iteration_s


def test_commands_take_names_and_say_what_they_stand_for(cache):
    for command in (
        ("simulate", "NousResearch/Meta-Llama-3-8B", "--gpu", "h100", "--gpus", "8", "--seq", "512"),
        ("list", "models", "NousResearch/Meta-Llama-3-8B"),
    ):
        assert "Assumed the sizes of llama-3-8b for NousResearch/Meta-Llama-3-8B" in " ".join(
            cli.output(*command).split()
        )

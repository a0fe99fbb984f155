"""Launch scripts: legal shell, a manifest of the API's form, ranks where the plan wants them."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.exports.exporting import export_plan
from planner.exports.launch import LAUNCHERS, nodes_of
from planner.exports.targets import TARGETS
from planner.layout import Layout
from tests.exports.plans import plan_for

LAYOUT = Layout(dp=4, tp=2, pp=2, zero_stage=1, sequence_parallel=True, microbatches=8)
SIMPLE = Layout(dp=16, zero_stage=2, microbatches=2)
NAMES = [*TARGETS, "executor"]


def exported(name: str, launcher: str, layout: Layout | None = None):
    plan = plan_for(layout or (LAYOUT if name == "megatron-lm" else SIMPLE))
    return export_plan(plan, name, launcher=launcher, lossy=True).files


def scripts_of(name: str, launcher: str) -> str:
    """The shell that a launcher's file holds."""
    text = list(exported(name, launcher).values())[-1]
    if launcher != "kubernetes":
        return text
    return "#!/bin/bash\n" + yaml.safe_load(text)["spec"]["trainer"]["args"][0]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", NAMES)
def test_scripts_parse(name, launcher, tmp_path):
    script = tmp_path / "script.sh"
    script.write_text(scripts_of(name, launcher))
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", NAMES)
def test_shellcheck_finds_nothing(name, launcher, tmp_path):
    checker = shutil.which("shellcheck") or shutil.which(
        "shellcheck", path=str(Path(sys.executable).parent)
    )
    if checker is None:
        pytest.skip("shellcheck is not installed")
    script = tmp_path / "script.sh"
    script.write_text(scripts_of(name, launcher))
    done = subprocess.run([checker, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_manifest_is_of_the_apis_form(name):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(__file__).with_name("trainjob.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    document = yaml.safe_load(exported(name, "kubernetes")["trainjob.yaml"])
    jsonschema.validate(document, schema)
    trainer = document["spec"]["trainer"]
    assert trainer["numNodes"] * trainer["numProcPerNode"] == 16


def test_a_wrong_manifest_is_refused():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(__file__).with_name("trainjob.schema.json").read_text())
    document = yaml.safe_load(exported("executor", "kubernetes")["trainjob.yaml"])
    document["spec"]["trainer"]["replicas"] = 2
    with pytest.raises(jsonschema.ValidationError, match="replicas"):
        jsonschema.validate(document, schema)


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_script_starts_every_rank_in_order(launcher, tmp_path):
    """Run the script with stand-ins for torchrun, srun and scontrol; see what they are given."""
    for program in ("torchrun", "accelerate"):
        stand_in = tmp_path / program
        stand_in.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
        stand_in.chmod(0o755)
    (tmp_path / "scontrol").write_text("#!/bin/bash\nprintf 'first\\nsecond\\n'\n")
    (tmp_path / "srun").write_text('#!/bin/bash\nshift\nfor SLURM_NODEID in 0 1; do '
                                   'export SLURM_NODEID; "$@"; done\n')  # fmt: skip
    for program in ("scontrol", "srun"):
        (tmp_path / program).chmod(0o755)
    script = tmp_path / "script.sh"
    script.write_text(scripts_of("megatron-lm", launcher))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[1-2]"}
    arguments = ["1", "first"] if launcher == "torchrun" else []
    done = subprocess.run(["bash", str(script), *arguments], capture_output=True, text=True,
                          env=environment, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    words = done.stdout.split("\n")
    ranks = [words[i + 1] for i, word in enumerate(words) if word == "--node-rank"]
    heads = {words[i + 1] for i, word in enumerate(words) if word == "--master-addr"}
    assert ranks == (["1"] if launcher == "torchrun" else ["0", "1"])
    assert heads == {"first"}
    place = words.index("--tensor-model-parallel-size")
    assert words[place + 1] == "2"
    assert words[words.index("--nproc-per-node") + 1] == "8"


def test_torchrun_script_needs_the_nodes_rank(tmp_path):
    script = tmp_path / "script.sh"
    script.write_text(scripts_of("executor", "torchrun"))
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "NODE_RANK" in done.stderr


def test_ranks_must_fill_nodes():
    with pytest.raises(ValueError, match=r"12 ranks do not fill whole nodes of 8.*8 or 16"):
        nodes_of(plan_for(Layout(dp=12)))


def test_unknown_launcher_lists_the_known():
    with pytest.raises(ValueError, match="torchrun, slurm, kubernetes"):
        export_plan(plan_for(SIMPLE), "executor", launcher="pbs")


@pytest.mark.parametrize("name, file, words", [
    ("deepspeed", "ds.json", None), ("accelerate", "a.yaml", "--config_file a.yaml"),
    ("torchtitan-0.2", "t.toml", "--job.config_file t.toml"),
    ("torchtitan-0.3", "mine.py", "--module mine --config planned"),
    ("nanotron", "n.yaml", "--config-file n.yaml"),
])  # fmt: skip
def test_a_renamed_file_is_what_the_launcher_starts(name, file, words):
    files = export_plan(
        plan_for(SIMPLE), name, launcher="torchrun", lossy=True, main_name=file
    ).files
    assert TARGETS[name].file_name not in "".join(files.values())
    assert file in files
    if words:
        assert words in files["launch.sh"]
    else:
        assert json.loads(files["training-arguments.json"])["deepspeed"] == file


def test_a_kubernetes_job_brings_its_plan_along(tmp_path):
    """The pods share no disk with the user: the script in the manifest writes the plan first."""
    from planner.plan import read_plan

    script = scripts_of("executor", "kubernetes")
    (tmp_path / "torchrun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PET_NODE_RANK": "1",
                   "PET_MASTER_ADDR": "head"}  # fmt: skip
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, check=False,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "executor.worker" in done.stdout
    assert read_plan(tmp_path / "plan.json") == plan_for(SIMPLE)


@pytest.mark.parametrize("cluster, resource, flag", [
    ("h100-8x400g", "nvidia.com/gpu", True), ("mi300x-8x400g", "amd.com/gpu", True),
    ("laptop", "cpu", False), ("mine.toml", "nvidia.com/gpu", True),
])  # fmt: skip
def test_devices_are_asked_for_by_their_vendors_name(cluster, resource, flag):
    plan = replace(plan_for(SIMPLE), cluster=cluster)
    files = {launcher: next(iter(export_plan(plan, "executor", launcher=launcher).files.values()))
             for launcher in ("kubernetes", "slurm")}  # fmt: skip
    trainer = yaml.safe_load(files["kubernetes"])["spec"]["trainer"]
    assert trainer["resourcesPerNode"]["limits"] == {resource: 8}
    assert ("--gpus-per-node=8" in files["slurm"]) == flag

"""Which devices a run trains on: one process's, or those of several processes on several hosts.

The processes of a run are called workers. TF_CONFIG names them, as TensorFlow defines it and as
Kubernetes' training operator writes it; or the SLURM step does that `srun` started them in.
"""

import json
import os
import re
import sys
from typing import Any

import tensorflow as tf

from pipelines.errors import BadInput
from t2t_repro.distributed.cluster import WorkerGone

_EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", '
_WANTED = f'wanted {_EXAMPLE}"index": 0}}}}, or leave the variable unset to train in one process'


def default_strategy() -> tf.distribute.Strategy:
    """All GPUs of all workers, or of this process; else CPUs. Before any other use of a device.

    Raises:
        BadInput: TF_CONFIG or SLURM's variables cannot be used, or this worker's port is taken.
        WorkerGone: The others are not there, or of another start of the job.
    """
    if (resolver := _resolver()) is not None:
        return _join(resolver)
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus])


def count_replicas() -> int:
    """How many replicas `default_strategy` will have, without a device being used."""
    jobs, _, _ = _workers()
    gpus = tf.config.list_physical_devices("GPU")
    return max(1, sum(map(len, jobs.values()))) * max(1, len(gpus))


def device_names(strategy: tf.distribute.Strategy) -> list[str]:
    """Of the GPUs that a worker uses, as their driver names them; else "CPU"."""
    devices = strategy.extended.worker_devices
    if not all("GPU" in device for device in devices):
        return ["CPU"]
    (first, *_) = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(first)
    return [details.get("device_name", "GPU")] * len(devices)


def _join(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> tf.distribute.Strategy:
    """The strategy of several workers, once they are all there."""
    jobs = resolver.cluster_spec().as_dict()
    address = jobs[resolver.task_type][resolver.task_id]
    print(
        f"{resolver.task_type} {resolver.task_id} at {address} waits until all "
        f"{sum(map(len, jobs.values()))} workers are there",
        file=sys.stderr,
    )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(resolver)
    except (tf.errors.UnknownError, tf.errors.AlreadyExistsError) as error:
        raise BadInput(
            f"this worker cannot listen at {address}: {_one_line(error)}; is another process of "
            "this job still there?"
        ) from None
    except tf.errors.OpError as error:
        raise WorkerGone(f"not all workers could be reached ({_one_line(error)})") from None


def _resolver() -> tf.distribute.cluster_resolver.ClusterResolver | None:
    """What names the workers and says which one this is; None if there is one alone."""
    jobs, job, index = _workers()
    if sum(map(len, jobs.values())) < 2:
        return None
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs),
        task_type=job,
        task_id=index,
        num_accelerators={"GPU": len(tf.config.list_physical_devices("GPU"))},
        rpc_layer="grpc",
    )


def _workers() -> tuple[dict[str, list[str]], str, int]:
    """(addresses by job, this one's job, its index); no addresses if there is one alone."""
    return _of_tf_config() or _of_slurm() or ({}, "", 0)


def _of_tf_config() -> tuple[dict[str, list[str]], str, int] | None:
    """What TF_CONFIG says of `_workers`; None without a cluster."""
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"TF_CONFIG: no JSON ({error}); {_WANTED}") from None
    if not isinstance(value, dict):
        raise BadInput(f"TF_CONFIG: no object; {_WANTED}")
    if not (jobs := value.get("cluster")):
        return None
    task: Any = value.get("task")
    _check_jobs(jobs, task)
    job, index = task["type"], _whole(task["index"])
    if job not in jobs:
        raise BadInput(f"TF_CONFIG: its task is of type '{job}', its cluster has no such job")
    if not 0 <= index < len(jobs[job]):
        raise BadInput(
            f"TF_CONFIG: its task is {job} {index}, its cluster has {job} 0 to {len(jobs[job]) - 1}"
        )
    return jobs, job, index


def _check_jobs(jobs: Any, task: Any) -> None:
    """Raises BadInput unless these are chief and workers, and the task says which one this is."""
    if not isinstance(jobs, dict) or not all(map(_is_addresses, jobs.values())):
        raise BadInput(f"TF_CONFIG: its cluster is not lists of host:port by job; {_WANTED}")
    if not isinstance(task, dict) or _whole(task.get("index")) < 0 or "type" not in task:
        raise BadInput(f"TF_CONFIG: its task needs a type and an index; {_WANTED}")
    if other := sorted({*jobs, task["type"]} - {"chief", "worker"}):
        raise BadInput(
            f"TF_CONFIG: there is nothing to do for '{other[0]}'; start chief and workers only, "
            "the chief scores the dev set"
        )
    if len(jobs.get("chief", ())) > 1:
        raise BadInput("TF_CONFIG: its cluster has two chiefs; make them workers")
    addresses = [address for job in jobs.values() for address in job]
    if twice := sorted({address for address in addresses if addresses.count(address) > 1}):
        raise BadInput(f"TF_CONFIG: its cluster has {twice[0]} twice; wanted one each")


def _is_addresses(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(address, str) and re.search(r":\d+$", address) for address in value)
    )


def _whole(value: Any) -> int:
    """A whole number, also one written as text; -1 for anything else."""
    return int(value) if re.fullmatch(r"\d+", str(value)) else -1


def _of_slurm() -> tuple[dict[str, list[str]], str, int] | None:
    """The same of the SLURM step that `srun` started this process in; None outside of one."""
    # Not SLURM_NTASKS: a batch script has it too, and there is one of that.
    if not _whole(os.environ.get("SLURM_STEP_NUM_TASKS")) > 1:
        return None
    count, job = (os.environ.get(f"SLURM_{name}", "0") for name in ("STEP_NUM_TASKS", "JOB_ID"))
    try:
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            # Jobs that share a host are told apart.
            port_base=20000 + _whole(job) % 10000,
            # Every task gets an address, and SLURM itself says which GPUs are a task's: the
            # resolver would divide by the GPUs of a host without any, and count those of a
            # shared host from 0.
            gpus_per_node=int(count),
            gpus_per_task=1,
            auto_set_gpu=False,
        )
        rank = int(os.environ["SLURM_PROCID"])
        addresses = sorted(resolver.cluster_spec().as_dict()["worker"], key=_numbers_as_such)
    except (RuntimeError, ValueError, LookupError) as error:
        raise BadInput(
            f"SLURM: its variables do not say who the workers are: {_one_line(error)}; start them "
            "with srun, or set TF_CONFIG"
        ) from None
    host, name = addresses[rank].rpartition(":")[0], os.environ.get("SLURMD_NODENAME")
    if name not in (None, host):
        raise BadInput(f"SLURM: task {rank} runs on {name}, not on {host}; set TF_CONFIG instead")
    return {"worker": addresses}, "worker", rank


def _numbers_as_such(address: str) -> list[tuple[bool, int, str]]:
    """Sorts node9 before node10, as SLURM ranks them and TensorFlow's resolver does not."""
    return [
        (part.isdigit(), int(part) if part.isdigit() else 0, part)
        for part in re.split(r"(\d+)", address)
    ]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]

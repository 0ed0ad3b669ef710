"""The devices that a run trains on, in one process or in several processes on several hosts.

The processes of a run are called workers. They are named by TF_CONFIG, which TensorFlow defines and
Kubernetes' training operator writes, or by the SLURM step in which `srun` started them.
"""

import contextlib
import json
import os
import re
import sys
from typing import Any

import tensorflow as tf

from pipelines.errors import BadInput
from pipelines.workers import cores
from t2t_repro.distributed.cluster import WorkerGone

_EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", '
_WANTED = f'wanted {_EXAMPLE}"index": 0}}}}, or leave the variable unset to train in one process'


def default_strategy() -> tf.distribute.Strategy:
    """Return a strategy over all GPUs of all workers, or over CPUs if there are no GPUs.

    Call this before any other use of a device.

    Raises:
        BadInput: TF_CONFIG or SLURM's variables are wrong, or this worker's port is in use.
        WorkerGone: The other workers cannot be reached, or belong to another start of the job.
    """
    if (resolver := _resolver()) is not None:
        return _join(resolver)
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus])


def prepare_cpu() -> None:
    """Set TensorFlow up to train on one CPU; with a GPU or several workers this does nothing.

    TensorFlow no longer rewrites functions, except where `layer_functions.rewritten` wants it. And
    on two cores an operation gets one, for two halves of a batch at the same time, unless
    TF_NUM_INTRAOP_THREADS says how many threads an operation has, or a device has been used. More
    cores stay undivided: two operations share what threads there are, and would leave half of the
    cores idle.
    """
    if not _is_one_cpu():
        return
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    if cores() == 2 and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):  # a device has been used
            tf.config.threading.set_intra_op_parallelism_threads(1)


def has_divided_cores() -> bool:
    """Return whether an operation has one of two cores, as `prepare_cpu` does it."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return _is_one_cpu() and threads == 1 and cores() == 2


def _is_one_cpu() -> bool:
    return count_replicas() == 1 and not tf.config.list_physical_devices("GPU")


def count_replicas() -> int:
    """Return how many replicas `default_strategy` will have, without using a device."""
    jobs, _, _ = _workers()
    gpus = tf.config.list_physical_devices("GPU")
    return max(1, sum(map(len, jobs.values()))) * max(1, len(gpus))


def is_in_cluster() -> bool:
    """Return whether TF_CONFIG or SLURM's variables make this process a worker of a job."""
    return bool(_workers()[0])


def device_names(strategy: tf.distribute.Strategy) -> list[str]:
    """Return the driver's names of the GPUs that a worker uses, or ["CPU"]."""
    devices = strategy.extended.worker_devices
    if not all("GPU" in device for device in devices):
        return ["CPU"]
    (first, *_) = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(first)
    return [details.get("device_name", "GPU")] * len(devices)


def _join(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> tf.distribute.Strategy:
    """Wait for all workers and return their strategy."""
    jobs = resolver.cluster_spec().as_dict()
    address = jobs[resolver.task_type][resolver.task_id]
    print(
        f"{resolver.task_type} {resolver.task_id} at {address} waits for all "
        f"{sum(map(len, jobs.values()))} workers",
        file=sys.stderr,
    )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(resolver)
    except (tf.errors.UnknownError, tf.errors.AlreadyExistsError) as error:
        raise BadInput(
            f"this worker cannot listen at {address}: {_one_line(error)}; is another process of "
            "this job still running?"
        ) from None
    except tf.errors.OpError as error:
        raise WorkerGone(f"not all workers could be reached ({_one_line(error)})") from None


def _resolver() -> tf.distribute.cluster_resolver.ClusterResolver | None:
    """Return a resolver with all workers and the task of this one, or None for a single process."""
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
    """Return ({job: addresses}, own job, own index); no addresses for a single process."""
    return _workers_from_tf_config() or _workers_from_slurm() or ({}, "", 0)


def _workers_from_tf_config() -> tuple[dict[str, list[str]], str, int] | None:
    """Return `_workers` as TF_CONFIG names them, or None if it names no cluster."""
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"TF_CONFIG: not JSON ({error}); {_WANTED}") from None
    if not isinstance(value, dict):
        raise BadInput(f"TF_CONFIG: not a JSON object; {_WANTED}")
    if not (jobs := value.get("cluster")):
        return None
    task: Any = value.get("task")
    _check_jobs(jobs, task)
    job, index = task["type"], _as_integer(task["index"])
    if job not in jobs:
        raise BadInput(f"TF_CONFIG: its task is of type '{job}', but its cluster has no such job")
    if not 0 <= index < len(jobs[job]):
        raise BadInput(
            f"TF_CONFIG: its task is {job} {index}, but its cluster only has {job} 0 to "
            f"{len(jobs[job]) - 1}"
        )
    return jobs, job, index


def _check_jobs(jobs: Any, task: Any) -> None:
    """Raise BadInput unless the jobs are a chief and workers, and the task is one of them."""
    if not isinstance(jobs, dict) or not all(map(_is_addresses, jobs.values())):
        raise BadInput(f"TF_CONFIG: its cluster does not map jobs to lists of host:port; {_WANTED}")
    typed = isinstance(task, dict) and isinstance(task.get("type"), str)
    if not typed or _as_integer(task.get("index")) < 0:
        raise BadInput(f"TF_CONFIG: its task needs a type and an index; {_WANTED}")
    if other := sorted({*jobs, task["type"]} - {"chief", "worker"}):
        raise BadInput(
            f"TF_CONFIG: a job '{other[0]}' is not supported; start a chief and workers only; the "
            "chief scores the dev set"
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


def _as_integer(value: Any) -> int:
    """Return a non-negative integer or its decimal text as int, or -1 for anything else."""
    return int(value) if re.fullmatch(r"\d+", str(value)) else -1


def _workers_from_slurm() -> tuple[dict[str, list[str]], str, int] | None:
    """Return `_workers` as the SLURM step names them, or None outside of an `srun` step."""
    # Not SLURM_NTASKS: it is also set in a batch script, which is a single process.
    if not _as_integer(os.environ.get("SLURM_STEP_NUM_TASKS")) > 1:
        return None
    count, job = (os.environ.get(f"SLURM_{name}", "0") for name in ("STEP_NUM_TASKS", "JOB_ID"))
    try:
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            # Jobs that share a host use different ports.
            port_base=20000 + _as_integer(job) % 10000,
            # Each task gets an address, and SLURM itself assigns the GPUs to tasks. The resolver
            # would divide by the number of GPUs, which may be 0, and number the GPUs of a shared
            # host from 0.
            gpus_per_node=int(count),
            gpus_per_task=1,
            auto_set_gpu=False,
        )
        rank = int(os.environ["SLURM_PROCID"])
        addresses = sorted(resolver.cluster_spec().as_dict()["worker"], key=_natural_order)
    except (RuntimeError, ValueError, LookupError) as error:
        raise BadInput(
            f"SLURM: its variables do not name the workers: {_one_line(error)}; start them "
            "with srun, or set TF_CONFIG"
        ) from None
    host, name = addresses[rank].rpartition(":")[0], os.environ.get("SLURMD_NODENAME")
    if name not in (None, host):
        raise BadInput(f"SLURM: task {rank} runs on {name}, not on {host}; set TF_CONFIG instead")
    return {"worker": addresses}, "worker", rank


def _natural_order(address: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts node9 before node10, like SLURM, unlike TensorFlow's resolver."""
    return [
        (part.isdigit(), int(part) if part.isdigit() else 0, part)
        for part in re.split(r"(\d+)", address)
    ]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]

"""Runs on a Ray cluster, and a node that is lost in the middle."""

import socket
import sys
import threading

import pytest

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.experiments.executors import train_run
from contextwise_plan.ray_launcher import RayExecutor, RaySettings, first_line
from contextwise_plan.sweeps.sweep import run_sweep
from sweeping import long_enough, same_as_alone, wait_for_checkpoint


def test_runs_have_as_many_threads_as_ray_reserves_cpus():
    assert RaySettings(kind="ray", cpus=2).run_threads == 2
    assert RaySettings(kind="ray", cpus=0.5).run_threads == 1
    assert RaySettings(kind="ray", cpus=2, threads=5).run_threads == 5


def test_runs_at_a_time_are_not_set_but_decided_by_ray():
    assert validate(RaySettings, {"kind": "ray", "jobs": 1}, "the sweep").jobs == 1
    with pytest.raises(ConfigError, match="jobs.* must be left out: Ray starts"):
        validate(RaySettings, {"kind": "ray", "jobs": 4}, "the sweep")


def test_the_error_without_ray_names_the_package_to_install(claimed, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install ray, or use --executor local"):
        RayExecutor(claimed(), RaySettings(kind="ray"))


def test_a_node_that_does_not_see_the_folder_reports_it(tmp_path):
    status, reason = train_run(str(tmp_path / "elsewhere"), "a")
    assert status == 2 and "its runs need a file system that all nodes share" in reason


def test_an_error_of_ray_without_a_message_is_named():
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert first_line(RuntimeError("\n the node died \nTraceback")) == "the node died"


def test_a_missing_cluster_is_refused(claimed, monkeypatch):
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")

    def refuse(**options):
        raise ConnectionError(f"Could not find any running Ray instance at {options['address']}.\nTrace")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ConfigError, match="no Ray cluster answers at auto: Could not find .*instance at auto.;"):
        RayExecutor(claimed(), RaySettings(kind="ray", address="auto"))
    monkeypatch.setattr(ray, "init", pytest.fail)  # which would try for minutes
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(ConfigError, match=f"no Ray cluster answers at {address}: .*refused"):
            RayExecutor(claimed(), RaySettings(kind="ray", address=address))


@pytest.mark.slow
def test_a_lost_node_costs_no_result(settings, tmp_path):
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")
    from ray.cluster_utils import Cluster

    wanted = settings(**long_enough(settings, steps=2000), executor={"kind": "ray"})
    runs = list(wanted.recipes())
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False)
        killed = []

        def lose_a_node():
            for run in runs:  # one on each node
                wait_for_checkpoint(wanted.folder / "runs" / run)
            cluster.remove_node(nodes[0], allow_graceful=False)
            killed.append(True)

        thread = threading.Thread(target=lose_a_node, daemon=True)
        thread.start()
        sweep = run_sweep(wanted)
        thread.join(60)
        logs = [sweep.log_file(run).read_text() for run in runs]
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert killed and sweep.count()["finished"] == 2
    # The run of the lost node, from its checkpoint
    assert sum("resuming from step " in log for log in logs) == 1
    assert all(same_as_alone(sweep, run, tmp_path / "alone") for run in runs)

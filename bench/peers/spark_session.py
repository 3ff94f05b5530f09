"""A session of Spark on processes of this machine: a driver and an executor for each worker.

The mode is local-cluster, in which each executor is a process with a heap and a port of its own, as on a
cluster of machines; with local[N] all would be threads of one process, without an exchange between
processes.
"""

import os
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession


def start(folder: Path, workers: int, memory_mib: int = 1024) -> SparkSession:
    """Start a session.

    Parameters
    ----------
    folder
        Where executors keep logs, exchanged rows and what they spill.
    workers
        Executors, of one core each.
    memory_mib
        Heap of each executor and of the driver. The default is Spark's; Spark refuses less than 450 MiB.
    """
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / "home"
    home.mkdir()
    # Executors in this mode write to SPARK_HOME/work: a folder of links keeps the package as it is.
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    os.environ |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    scratch = folder / "scratch"
    scratch.mkdir()
    settings = {
        "spark.executor.memory": f"{memory_mib}m",
        "spark.driver.memory": f"{memory_mib}m",
        "spark.local.dir": str(scratch),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch}",
        "spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={scratch}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local-cluster[{workers},1,{memory_mib}]").appName("inshore-bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()

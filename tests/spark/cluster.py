"""A Spark cluster on this machine, from the installed pyspark: a master and two workers, processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path

import pyspark

SPARK = Path(pyspark.__file__).parent
WAIT_S = 60.0
MEMORY = "1g"


class Part:
    """A master or a worker; what it logs is waited for."""

    def __init__(self, name: str, *arguments: str) -> None:
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"},
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()

    def says(self, pattern: str) -> re.Match[str]:
        """What it says, once it does."""

        def found() -> re.Match[str] | None:
            return next((match for line in self._lines if (match := re.search(pattern, line))), None)

        with self._news:
            match = self._news.wait_for(found, WAIT_S)
        assert match, "".join(self._lines)
        return match

    def end(self) -> None:
        self._process.terminate()  # a worker ends its executors
        self._process.wait(WAIT_S)
        self._thread.join(WAIT_S)
        assert self._process.stderr is not None
        self._process.stderr.close()


class Cluster:
    """A standalone master and two workers, on ports that the system chose."""

    def __init__(self, folder: Path) -> None:
        host = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._parts = [Part("master.Master", *host)]
        try:
            self.master = self._parts[0].says(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
            for number in range(2):
                work = ("--cores", "1", "--memory", MEMORY, "--work-dir", str(folder / f"work{number}"))
                self._parts.append(Part("worker.Worker", *host, *work, self.master))
            for worker in self._parts[1:]:
                worker.says("Successfully registered with master")
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        for part in reversed(self._parts):
            part.end()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

"""`dsi benchmark-multilabel`: the tree model on multi-label data sets, beside napkinXC's PLT and PECOS' XR-Linear.

Every system is trained, asked and measured in a process of its own, one after the other. The other libraries need not be
installed beside this package: --peers names the Python that has them (`pip install napkinxc libpecos`).
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.main import run_command
from dsi.commands.values import count, number, output_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAMES = {"napkinxc": "napkinXC PLT", "pecos": "PECOS XR-Linear"}
CUTOFFS = (1, 3, 5)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, then print and write the table."""
    command_line = parser("benchmark-multilabel", __doc__)
    command_line.add_argument(
        "--data",
        type=Path,
        required=True,
        nargs="+",
        metavar="PREFIX",
        help="PREFIX.train.svm.gz and PREFIX.test.svm.gz",
    )
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="DIR", help="folder of JSON and table"
    )
    command_line.add_argument("--objectives", nargs="+", default=["plt", "tdm", "otm", "otm-mix"], help="of our model")
    command_line.add_argument("--peers", metavar="PYTHON", help="a Python interpreter that has napkinxc and libpecos")
    command_line.add_argument("--seeds", type=number(int, 0), nargs="+", default=[0, 1, 2], help="of the trainings")
    command_line.add_argument("--threads", type=count, default=1, help="of every system")
    arguments = command_line.parse_args(argv)
    load_libraries()
    import numpy as np

    from dsi_experiments.benchmarks.multilabel_systems import read
    from dsi_experiments.objectives.rows import find_row
    from dsi_experiments.report import save_report

    for name in arguments.objectives:
        find_row(name)
    texts, records = [], []
    for prefix in arguments.data:
        files = data_files(prefix)
        relevant = np.asarray(read(files)[1][1].todense()) > 0
        systems = [(sys.executable, name) for name in arguments.objectives]
        systems += [(arguments.peers, name) for name in NAMES if arguments.peers]
        measured = [
            {"system": name, "seed": seed, **measure(python, name, files, relevant, seed, arguments.threads)}
            for seed in arguments.seeds
            for python, name in systems
        ]
        records.append({"data": prefix.name, "measured": measured})
        texts.append(table(prefix.name, measured))
        record = {"threads": arguments.threads, "results": records}
        save_report(arguments.output, "multilabel", "\n\n".join(texts), record)
    print("\n\n".join(texts))


def data_files(prefix: Path) -> list[Path]:
    """The train and the test file of a data set."""
    files = [prefix.with_name(f"{prefix.name}.{split}.svm.gz") for split in ("train", "test")]
    missing = [path for path in files if not path.exists()]
    if missing:
        raise FileNotFoundError(f"{missing[0]} does not exist; --data takes the path up to .train.svm.gz.")
    return files


def measure(
    python: str, system: str, files: list[Path], relevant: "NDArray[np.bool_]", seed: int, threads: int
) -> dict[str, Any]:
    """P@1, P@3, P@5 in percent on the test file, times and memory of one system, trained in a process of its own.

    Args:
        python: the interpreter.
        system: an objective, or a key of `NAMES`.
        files: train and test.
        relevant: [test instances, labels].
        seed: of the training.
        threads: that it may use.
    """
    import numpy as np

    script = Path(__file__).parents[1] / "benchmarks" / "multilabel_systems.py"
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.npy"
        settings = ["--seed", str(seed), "--threads", str(threads)]
        command = [python, str(script), system, *map(str, [*files, answers]), *settings]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"{system} failed under {python}: {done.stderr.strip().splitlines()[-1]}")
        found = np.load(answers)
    return {**precisions(found, relevant), **json.loads(done.stdout.splitlines()[-1])}


def precisions(found: "NDArray[np.integer]", relevant: "NDArray[np.bool_]") -> dict[str, float]:
    """{"P@m": percent} of labels found, [instances, at least 5], best first, -1 for none."""
    import numpy as np

    right = np.take_along_axis(relevant, np.maximum(found, 0), axis=1) & (found >= 0)
    return {f"P@{m}": round(100 * float(right[:, :m].mean()), 2) for m in CUTOFFS}


def table(title: str, measured: list[dict[str, Any]]) -> str:
    """Markdown: a line a system, means over seeds, deviation of P@1."""
    import numpy as np

    from dsi.eval.tables import markdown_table

    columns = [*(f"P@{m}" for m in CUTOFFS), "train seconds", "milliseconds an instance", "MiB beyond the data"]
    rows = []
    for system in dict.fromkeys(record["system"] for record in measured):
        own = [record for record in measured if record["system"] == system]
        means = [f"{np.mean([record[column] for record in own]):.{0 if 'MiB' in column else 2}f}" for column in columns]
        if len(own) > 1:
            means[0] += f" ± {np.std([record['P@1'] for record in own], ddof=1):.2f}"
        rows.append([NAMES.get(system, f"tree model, {system}"), *means])
    return markdown_table([title, *columns], rows)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

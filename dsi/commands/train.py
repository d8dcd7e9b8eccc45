"""`dsi train`: run all stages, from a collection to a searchable, tuned index in RUN.

Stages that are up to date are skipped, and a killed run resumes where it stopped. --stage runs one of them alone. From Python:
`dsi.train`.
"""

from collections.abc import Sequence

from dsi.commands.arguments import add_overwriting, in_words, training_parser, training_run
from dsi.commands.values import existing_file

STAGE_METHODS = {
    "pseudo_queries": "generate_queries",
    "encoder": "train_encoder",
    "docids": "build_docids",
    "generator": "train_generator",
    "tuning": "tune",
}
"""{what --stage takes: the method of a `TrainingRun` that runs it, with the parts that belong to it}, in their order."""
REPORTS = ("none", "tensorboard", "wandb")


def main(argv: Sequence[str] | None = None) -> None:
    """Train, tune on dev, print how long it took."""
    # 1) Parse.
    parser = training_parser("train", __doc__)
    parser.add_argument(
        "--stage", choices=list(STAGE_METHODS), help="run this stage alone; those that it needs have to be there"
    )
    parser.add_argument(
        "--pairs",
        type=existing_file,
        metavar="FILE",
        help="training pairs: query, positive and perhaps negatives as .jsonl, .parquet, .csv or .tsv, by texts or by ids",
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="have documents embedded and clustered by local processes (local), a Ray cluster around this process (auto), or "
        "one at HOST:PORT; all machines see RUN",
    )
    parser.add_argument(
        "--report-to",
        choices=REPORTS,
        default="none",
        help="where the losses of the trainings go; tensorboard: files in RUN/logs",
    )
    add_overwriting(parser)
    arguments = parser.parse_args(argv)
    # 2) Run the stages.
    run = training_run(arguments)
    getattr(run, STAGE_METHODS.get(arguments.stage, "train"))()
    # 3) Print what there is now.
    if not run.processes.is_main:
        return
    if arguments.stage == "docids":
        print((run.folder / "docids" / "diagnostics.json").read_text(encoding="utf-8"), end="")
    print(f"train: {in_words(run.seconds)} -> {run.folder}")
    from dsi.measuring.tuning import is_tuned

    if arguments.stage == "generator" and run.config.dev_queries and not is_tuned(run.folder):
        print(f"The index is not tuned yet: dsi tune {run.folder} --data {run.collection.name}")

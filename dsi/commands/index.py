"""`dsi index`: make an index of texts, without training.

A SOURCE is a file or a folder of files: .md, .txt, .rst, .html, .pdf, .docx, .pptx, .xlsx, .ipynb, .eml, source code and
other texts, any of them compressed (.gz), and tables with a document a row (.jsonl, .csv, .tsv, .parquet); or a collection in
BEIR layout, on whose dev queries the weights are tuned. INDEX is the folder of the index. From Python: `dsi.index`.
"""

from argparse import ArgumentParser
from collections.abc import Sequence

from dsi.commands.arguments import add_configuration, add_device, add_overwriting, parser, with_settings
from dsi.commands.libraries import load_libraries, set_up
from dsi.commands.values import existing_file, output_folder, source_path
from dsi.docids.files.checks import counted


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("index", __doc__)
    add = command_line.add_argument
    add("sources", nargs="+", type=source_path, metavar="SOURCE", help="files or folders of texts")
    add("run", type=output_folder, metavar="INDEX", help="folder for the index")
    add_configuration(
        command_line,
        "configuration, by name or TOML file, by default INDEX/config.toml, or else what we recommend; nothing is trained",
    )
    meaning = "embeddings of the documents, a .npy matrix [documents, dim]; none are computed then"
    add("--embeddings", type=existing_file, metavar="FILE", help=meaning)
    add_overwriting(command_line)
    add_device(command_line)
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Index, print how many documents there are."""
    # 1) Check device and settings, before imports that take long.
    arguments = build_parser().parse_args(argv)
    set_up()
    from dsi.config import run_config
    from dsi.contrastive.devices import check_device

    check_device(arguments.device)
    config = with_settings(run_config(arguments.run, arguments.config), arguments.settings)
    # 2) Index.
    load_libraries(training=True)
    from dsi.training.indexing import index

    retriever = index(
        arguments.sources, arguments.run, config=config, embeddings=arguments.embeddings, device=arguments.device,
        replace=arguments.replace, discard_updates=arguments.discard_updates,
    )  # fmt: skip
    print(f"{arguments.run}: {counted(len(retriever), 'document')}; dsi search {arguments.run}")

"""`dsi export`: write embeddings, docids and the tree of an index for other programs (.npy, Parquet, GraphML).

DIR holds documents.parquet; docids.parquet with embeddings.npy and nodes.parquet with centroids.npy, whose rows belong to each
other; and tree.graphml. From Python: `dsi.integrations.export.export_index`.
"""

from collections.abc import Sequence

from dsi.commands.arguments import add_index, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import output_folder


def main(argv: Sequence[str] | None = None) -> None:
    """Export, print what was written."""
    command_line = parser("export", __doc__)
    add_index(command_line)
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="DIR", help="folder to write, new or empty"
    )
    arguments = command_line.parse_args(argv)
    load_libraries()
    from dsi.integrations.export import export_index

    written = export_index(arguments.run, arguments.output)
    print(
        f"{arguments.output}: {written.documents} documents, {written.docids} docids with embeddings of {written.dim} "
        f"dimensions, {written.nodes} inner nodes"
    )

"""Docids of titles, a generator of their tokens, and the probabilities of T5 itself."""

from pathlib import Path

import numpy as np
import torch
from dsi_experiments.generators.words import WordGenerator, node_numbers
from transformers import AutoTokenizer, T5ForConditionalGeneration

from dsi.config import GeneratorConfig
from dsi.docids.clustering import assemble
from dsi.docids.schemes import DocidsConfig, SchemeInput, make_docids
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.generator.kinds import create_generator
from tests.support.small import WIDTH

TITLES = ["Danube", "Danube Delta", "Lake Tanganyika", "Volga", "Lake Baikal", "Delta of the Danube", "Volga", "Neon"]


def log_p_of_t5(folder: Path, tree: DocidTree, numbers: Ints, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[batch, documents] log-probability of each title by T5 itself, over the tokens that may follow in the tree."""
    states, mask = torch.as_tensor(states), torch.as_tensor(mask)
    t5 = T5ForConditionalGeneration.from_pretrained(str(folder)).eval()
    names, log_p = node_numbers(tree, numbers), torch.zeros(len(states), tree.num_places)
    for document in range(tree.num_places):
        node, written = 0, [0]
        for digit in tree.digits(document):
            children = tree.first_child[node] + np.arange(tree.num_children[node])
            if len(children) > 1:
                encoded = {"encoder_outputs": (states,), "attention_mask": mask.long()}
                with torch.no_grad():
                    logits = t5(**encoded, decoder_input_ids=torch.tensor([written] * len(states))).logits[:, -1]
                log_p[:, document] += logits[:, names[children].tolist()].log_softmax(dim=1)[:, digit]
            node = int(children[digit])
            written.append(int(names[node]))
    return log_p


def title_tree(t5_folder: Path) -> tuple[DocidTree, Ints]:
    """The tree of `TITLES`, and the tokens of its docids in docid order."""
    embeddings = np.random.default_rng(0).normal(size=(len(TITLES), WIDTH)).astype(np.float32)
    config, tokenizer = DocidsConfig(method="title"), AutoTokenizer.from_pretrained(str(t5_folder))
    docids = make_docids(SchemeInput(embeddings, config, titles=TITLES, tokenizer=tokenizer))
    tree = assemble(docids, embeddings)
    return tree, docids.paths[tree.doc_rows]


def word_generator(tree: DocidTree, numbers: Ints, t5_folder: Path) -> WordGenerator:
    config = GeneratorConfig(docid_tokens="words", decoder=str(t5_folder))
    made = create_generator(config, tree, WIDTH, "ce", numbers=numbers)
    assert isinstance(made, WordGenerator)
    return made.eval()

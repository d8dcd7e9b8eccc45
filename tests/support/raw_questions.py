"""Records of Natural Questions in the three forms in which they come."""

import gzip
import html
import json

PAGES = {
    "Trade winds": [
        "The trade winds are winds that blow from the east .",
        "They were used by sailors ( for centuries ) .",
    ],
    "Email marketing": ["Email marketing is sending a message , typically to a group ."],
    "Café au lait": ["Café au lait is coffee with hot milk ."],
}


QUESTIONS = [
    (101, "what purpose did trade winds serve", "Trade winds"),
    (102, "which is the most common use of email marketing", "Email marketing"),
    (103, "where do trade winds blow", "Trade winds"),
    (104, "what is cafe au lait", "Café au lait"),
    (105, "where do trade winds blow", "Trade winds"),
]


def tokens(title: str) -> list[str]:
    body = [token for text in PAGES[title] for token in ["<P>", *text.split(), "</P>"]]
    return [
        "<H1>",
        *title.split(),
        "</H1>",
        "Jump",
        "to",
        ":",
        "navigation",
        *body,
        "<Ul>",
        "<Li>",
        "See",
        "also",
        "</Li>",
        "</Ul>",
    ]


def simplified(example_id: int, question: str, title: str) -> dict:
    url = f"https://en.wikipedia.org//w/index.php?title={title.replace(' ', '_')}&oldid=81407120{example_id}"
    return {
        "document_text": " ".join(tokens(title)), "long_answer_candidates": [], "question_text": question,
        "annotations": [], "document_url": html.escape(url), "example_id": example_id,
    }  # fmt: skip


def original(example_id: int, question: str, title: str) -> dict:
    page, found = "", []
    for token in tokens(title):
        start = len(page.encode())
        page += token + " "
        is_html = token.startswith("<")
        found.append(
            {"token": token, "html_token": is_html, "start_byte": start, "end_byte": start + len(token.encode())}
        )
    return {
        "example_id": example_id, "document_title": title, "document_html": page, "document_tokens": found,
        "question_text": question, "question_tokens": question.split(), "annotations": [],
        "document_url": "https://en.wikipedia.org/", "long_answer_candidates": [],
    }  # fmt: skip


def hub(example_id: int, question: str, title: str) -> dict:
    words = tokens(title)
    return {
        "id": str(example_id),
        "document": {"title": title, "url": "", "html": "", "tokens": {
            "token": words, "is_html": [word.startswith("<") for word in words],
            "start_byte": list(range(len(words))), "end_byte": list(range(len(words)))}},
        "question": {"text": question, "tokens": question.split()},
    }  # fmt: skip


FORMS = {"simplified": simplified, "original": original, "hub": hub}


def raw_file(folder, name, form, questions):
    path = folder / name
    with gzip.open(path, "wt", encoding="utf-8") if name.endswith(".gz") else path.open("w", encoding="utf-8") as file:
        for question in questions:
            file.write((question if isinstance(question, str) else json.dumps(FORMS[form](*question))) + "\n")
    return path

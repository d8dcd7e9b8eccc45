"""The telling words of clusters in other scripts."""

import dsi
from dsi.store.documents.topics import Topics


def test_scripts_without_spaces_have_pairs_of_letters_and_marks_stay_with_their_letters(sentence_bert_folder):
    texts = ["東京都の人口は多い。東京都", "東京の気候は温暖", "गंगा भारत की नदी", "गंगा और यमुना"]
    retriever = dsi.index(texts, encoder=str(sentence_bert_folder), device="cpu")
    words = set(Topics(retriever.snapshot.tree, retriever.snapshot.documents).words)
    assert {"東京", "京都", "यमुना", "भारत"} <= words
    assert not any("東京都" in word for word in words)

"""How alike sentences are to what is asked, by embeddings."""

from pathlib import Path
from urllib.parse import parse_qs

import wordllama

model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
kept = ["a cat sleeps on the sofa", "the bank raised its interest rates"]


def handler(event, context):
    query = parse_qs(event["rawQueryString"])
    if event["requestContext"]["http"]["method"] == "POST":
        kept.append(event["rawPath"].removeprefix("/items/").replace("-", " "))
    question = query.get("like", ["a kitten naps"])[0]
    return [text for text, _ in model.rank(question, kept)]

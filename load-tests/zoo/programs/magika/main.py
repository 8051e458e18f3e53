"""What a text is, as a neural network sees it."""

from magika import Magika

magika = Magika()
seen = []


def handler(event, context):
    if event.get("body"):
        seen.append(magika.identify_bytes(event["body"].encode()).output.label)
    return {"hello": "of Magika", "seen": seen}

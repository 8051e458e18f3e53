"""A page with a picture that is drawn for each request."""

import base64
import io

from jinja2 import Template
from PIL import Image, ImageDraw

page = Template("<p>hello of {{ kept }}</p><img src='data:image/png;base64,{{ picture }}'>")
kept = []


def handler(event, context):
    if event["requestContext"]["http"]["method"] == "POST":
        kept.append(event["rawPath"])
    image = Image.new("RGB", (200, 100), "white")
    ImageDraw.Draw(image).text((10, 10), str(kept), fill="black", font_size=20)
    written = io.BytesIO()
    image.save(written, "PNG")
    picture = base64.b64encode(written.getvalue()).decode()
    headers = {"content-type": "text/html"}
    return {"statusCode": 200, "headers": headers, "body": page.render(kept=kept, picture=picture)}

"""Text turned around, by a page and by an API."""

import os

import gradio

seen = []


def turn(text):
    seen.append(text)
    return f"{text[::-1]} of {seen}"


page = gradio.Interface(turn, "text", "text", api_name="turn", flagging_mode="never")
page.launch(server_name="127.0.0.1", server_port=int(os.environ["PORT"]))

"""A slider and what it says."""

from shiny import App, render, ui

page = ui.page_fluid(ui.input_slider("n", "animals", 1, 100, 7), ui.output_text("said"))


def server(input, output, session):
    @render.text
    def said():
        return f"twice {input.n()}"


app = App(page, server)

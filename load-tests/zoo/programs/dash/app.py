"""A button that counts, for all who look."""

from dash import Dash, Input, Output, callback, html

app = Dash(__name__)
server = app.server
app.layout = html.Div([html.Button("more", id="more"), html.P(id="count")])
pressed = []


@callback(Output("count", "children"), Input("more", "n_clicks"))
def count(clicks):
    pressed.append(clicks)
    return f"pressed {pressed}"

"""A curve."""

from bokeh.io import curdoc
from bokeh.plotting import figure

plot = figure(title="zoo")
plot.line(range(100), [x * x for x in range(100)])
curdoc().add_root(plot)

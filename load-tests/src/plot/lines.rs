//! Lines over two axes, with a legend below them: curves, steps over time, distributions.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::scale::Axis;
use super::{Colour, FADED, FAINT, FONT, INK, PlotError, WIDTH};

const HEIGHT: u32 = 340;
/// Width of an entry of the legend, and of a letter in it, in pixels, roughly.
const ENTRY: i32 = 34;
const LETTER: i32 = 7;
const LINE: i32 = 20;

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    /// Name in the legend.
    pub(crate) name: String,
    /// Colour of the line.
    pub(crate) colour: Colour,
    /// Points from left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A plot of lines.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lines {
    /// Title above the plot.
    pub(crate) title: String,
    /// Note below everything: what it is of, and when; may be empty.
    pub(crate) note: String,
    /// Axis to the right.
    pub(crate) x: Axis,
    /// Axis upwards.
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

/// Draws it as an SVG document.
pub(crate) fn lines(plot: &Lines) -> Result<String, PlotError> {
    let mut svg = String::new();
    draw(plot, &mut svg).map_err(|e| PlotError::of(&plot.title, e))?;
    Ok(svg)
}

fn draw(plot: &Lines, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let legend = legend(&plot.lines);
    let rows = legend.last().map_or(0, |(_, y, _)| y / LINE + 1);
    let noted = if plot.note.is_empty() { 0 } else { LINE };
    let below = u32::try_from(rows * LINE + noted + 8).unwrap_or(0);
    let area = SVGBackend::with_string(svg, (WIDTH, HEIGHT + below)).into_drawing_area();
    area.fill(&WHITE)?;
    let (upper, lower) = area.split_vertically(HEIGHT);
    let mut chart = ChartBuilder::on(&upper)
        .caption(&plot.title, (FONT, 17).into_font().color(&INK))
        .margin(8)
        .margin_right(22)
        .x_label_area_size(42)
        .y_label_area_size(62)
        .build_cartesian_2d(plot.x.clone(), plot.y.clone())?;
    chart
        .configure_mesh()
        .x_desc(&plot.x.label)
        .y_desc(&plot.y.label)
        .axis_desc_style((FONT, 14).into_font().color(&INK))
        .label_style((FONT, 13).into_font().color(&INK))
        .axis_style(INK)
        .bold_line_style(FAINT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for line in &plot.lines {
        let style = ShapeStyle {
            color: line.colour.to_rgba(),
            filled: false,
            stroke_width: 2,
        };
        chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
    }
    let style = (FONT, 13)
        .into_font()
        .color(&INK)
        .pos(Pos::new(HPos::Left, VPos::Center));
    for (x, y, line) in legend {
        let middle = y + LINE / 2;
        let stroke = ShapeStyle {
            color: line.colour.to_rgba(),
            filled: true,
            stroke_width: 3,
        };
        lower.draw(&PathElement::new(vec![(x, middle), (x + 20, middle)], stroke))?;
        lower.draw(&Text::new(line.name.clone(), (x + 26, middle), style.clone()))?;
    }
    let middle = (i32::try_from(WIDTH)? / 2, rows * LINE + LINE / 2);
    let faded = (FONT, 12)
        .into_font()
        .color(&FADED)
        .pos(Pos::new(HPos::Center, VPos::Center));
    lower.draw(&Text::new(plot.note.clone(), middle, faded))?;
    area.present()?;
    Ok(())
}

/// The position of each entry of the legend: as many in a row as there is room for.
fn legend(lines: &[Line]) -> Vec<(i32, i32, &Line)> {
    let (left, right) = (72, i32::try_from(WIDTH).unwrap_or(i32::MAX) - 20);
    let (mut x, mut y) = (left, 0);
    let mut out = Vec::new();
    for line in lines {
        let width = ENTRY + LETTER * i32::try_from(line.name.chars().count()).unwrap_or(0) + 14;
        if x > left && x + width > right {
            (x, y) = (left, y + LINE);
        }
        out.push((x, y, line));
        x += width;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::colour;

    fn line(name: &str) -> Line {
        Line {
            name: name.to_owned(),
            colour: colour(0),
            points: vec![(1.0, 0.0), (10.0, 1.0)],
        }
    }

    #[test]
    fn a_plot_has_its_title_labels_and_legend_as_text() {
        let plot = Lines {
            title: "Latency <all>".to_owned(),
            note: String::new(),
            x: Axis::log("latency, ms", [1.0, 10.0].into_iter()),
            y: Axis::from_zero("share", [1.0].into_iter()),
            lines: vec![line("warm & idle")],
        };
        let svg = lines(&plot).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["Latency &lt;all&gt;", "latency, ms", "share", "warm &amp; idle"] {
            assert!(svg.contains(text), "no {text} in {svg}");
        }
    }

    #[test]
    fn a_legend_without_room_goes_on_in_the_next_row() {
        let many: Vec<Line> = (0..12).map(|n| line(&format!("a rather long name {n}"))).collect();
        let places = legend(&many);
        assert!(
            places
                .iter()
                .all(|(x, _, l)| x + LETTER * i32::try_from(l.name.len()).unwrap() < 860)
        );
        assert!(places.last().unwrap().1 > 0);
    }
}

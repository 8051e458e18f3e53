//! A row for each item, and dots on one axis for its figures, each with the interval in which the true one is likely to
//! be.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::scale::Axis;
use super::{Colour, FADED, FAINT, FONT, INK, PlotError, WIDTH};

const ROW: i32 = 26;
const LEFT: i32 = 300;
const RIGHT: i32 = 24;
const TOP: i32 = 62;
const BOTTOM: i32 = 78;

/// A figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dot {
    /// Index of the plot's figure.
    pub(crate) kind: usize,
    pub(crate) value: f64,
    pub(crate) interval: Option<(f64, f64)>,
}

/// An item and its figures.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// Label to the left.
    pub(crate) name: String,
    /// Empty if it was not measured.
    pub(crate) dots: Vec<Dot>,
}

/// A plot of rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Dots {
    /// Title above the plot.
    pub(crate) title: String,
    /// Note below everything: what it is of, and when.
    pub(crate) note: String,
    /// Axis to the right.
    pub(crate) x: Axis,
    /// The figures of each row, by name and colour.
    pub(crate) kinds: Vec<(String, Colour)>,
    /// Rows from the top down.
    pub(crate) rows: Vec<Row>,
}

/// Draws it as an SVG document.
pub(crate) fn dots(plot: &Dots) -> Result<String, PlotError> {
    let mut svg = String::new();
    draw(plot, &mut svg).map_err(|e| PlotError::of(&plot.title, e))?;
    Ok(svg)
}

fn draw(plot: &Dots, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let width = i32::try_from(WIDTH)?;
    let rows = i32::try_from(plot.rows.len())?;
    let height = TOP + ROW * rows + BOTTOM;
    let area = SVGBackend::with_string(svg, (WIDTH, u32::try_from(height)?)).into_drawing_area();
    area.fill(&WHITE)?;
    let text = |size: i32, at: HPos| (FONT, size).into_font().color(&INK).pos(Pos::new(at, VPos::Center));
    let place = |value: f64| {
        let span = f64::from(width - LEFT - RIGHT);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a place on the plot, which has few hundred pixels"
        )]
        let at = LEFT + (span * plot.x.place(value)).round() as i32;
        at
    };
    area.draw(&Text::new(plot.title.clone(), (width / 2, 18), text(17, HPos::Center)))?;
    legend(plot, &area, &text)?;

    let bottom = TOP + ROW * rows;
    for tick in plot.x.ticks(8) {
        let x = place(tick);
        area.draw(&PathElement::new(vec![(x, TOP - 4), (x, bottom)], FAINT))?;
        area.draw(&Text::new(Axis::tell(tick), (x, bottom + 14), text(13, HPos::Center)))?;
    }
    area.draw(&PathElement::new(vec![(LEFT, bottom), (width - RIGHT, bottom)], INK))?;
    area.draw(&Text::new(
        plot.x.label.clone(),
        ((LEFT + width - RIGHT) / 2, bottom + 38),
        text(14, HPos::Center),
    ))?;

    area.draw(&Text::new(
        plot.note.clone(),
        (width / 2, bottom + 62),
        text(12, HPos::Center).color(&FADED),
    ))?;

    for (n, row) in (0..).zip(&plot.rows) {
        let y = TOP + ROW * n + ROW / 2;
        area.draw(&Text::new(row.name.clone(), (LEFT - 12, y), text(14, HPos::Right)))?;
        if row.dots.is_empty() {
            area.draw(&Text::new("not measured", (LEFT + 8, y), text(13, HPos::Left)))?;
        }
        for dot in &row.dots {
            let colour = plot.kinds.get(dot.kind).map_or(INK, |(_, colour)| *colour);
            if let Some((from, to)) = dot.interval {
                let stroke = ShapeStyle {
                    color: colour.mix(0.45),
                    filled: true,
                    stroke_width: 4,
                };
                area.draw(&PathElement::new(vec![(place(from), y), (place(to), y)], stroke))?;
            }
            area.draw(&Circle::new((place(dot.value), y), 5, colour.filled()))?;
        }
    }
    area.present()?;
    Ok(())
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn legend<'t>(
    plot: &Dots,
    area: &Canvas<'_>,
    text: &dyn Fn(i32, HPos) -> TextStyle<'t>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut x = LEFT;
    for (name, colour) in &plot.kinds {
        area.draw(&Circle::new((x + 5, 42), 5, colour.filled()))?;
        area.draw(&Text::new(name.clone(), (x + 16, 42), text(13, HPos::Left)))?;
        x += 16 + 8 * i32::try_from(name.chars().count())? + 16;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::colour;

    #[test]
    fn every_row_is_named_and_one_without_figures_says_so() {
        let plot = Dots {
            title: "Starts".to_owned(),
            note: "revision x".to_owned(),
            x: Axis::log("ms", [1.0, 100.0].into_iter()),
            kinds: vec![("p50".to_owned(), colour(0))],
            rows: vec![
                Row {
                    name: "restored".to_owned(),
                    dots: vec![Dot {
                        kind: 0,
                        value: 10.0,
                        interval: Some((9.0, 12.0)),
                    }],
                },
                Row {
                    name: "podman".to_owned(),
                    dots: Vec::new(),
                },
            ],
        };
        let svg = dots(&plot).unwrap();
        for text in ["revision x", "restored", "podman", "not measured", "p50", "Starts"] {
            assert!(svg.contains(text), "no {text} in {svg}");
        }
        assert_eq!(
            svg.matches("<circle").count(),
            2,
            "one in the legend and one in the row: {svg}"
        );
    }
}

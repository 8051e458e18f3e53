//! Plots as SVG text: dark on light, labelled axes with units, logarithmic if a scale spans decades. They are drawn by
//! `plotters`, which works in-process without fonts or a browser and has logarithmic axes. Nothing here knows what is
//! plotted.

mod dots;
mod lines;
mod scale;

pub(crate) use dots::{Dot, Dots, Row, dots};
pub(crate) use lines::{Line, Lines, lines};
pub(crate) use scale::Axis;

use plotters::style::RGBColor;

/// Width of every plot, pixels; SVG scales.
const WIDTH: u32 = 860;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(33, 37, 41);
const FADED: RGBColor = RGBColor(108, 117, 125);
const FAINT: RGBColor = RGBColor(222, 226, 230);

/// A colour that is readable on white.
pub(crate) type Colour = RGBColor;

/// Distinguishable colours, also for most who do not see all of them (Okabe and Ito's without the yellow, and two
/// more).
pub(crate) const PALETTE: [Colour; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(73, 80, 87),
    RGBColor(111, 66, 193),
    RGBColor(140, 86, 75),
];

/// The colour of the `n`th item.
pub(crate) fn colour(n: usize) -> Colour {
    PALETTE[n % PALETTE.len()]
}

/// Why a plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot \"{title}\" cannot be drawn: {reason}")]
pub(crate) struct PlotError {
    title: String,
    reason: String,
}

impl PlotError {
    fn of(title: &str, reason: impl std::fmt::Display) -> Self {
        let (title, reason) = (title.to_owned(), reason.to_string());
        Self { title, reason }
    }
}

//! Axes: what a number on one means, its range, and the numbers written on it.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// How values are spread over an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Evenly.
    Linear,
    /// By their logarithm; values at or below zero cannot be shown.
    Log,
}

/// One axis of a plot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    /// Label, with the unit.
    pub(crate) label: String,
    pub(crate) scale: Scale,
    /// Least value.
    pub(crate) min: f64,
    /// Greatest value.
    pub(crate) max: f64,
    /// The values written on it, if they are not to be round ones.
    pub(crate) marked: Vec<f64>,
}

impl Axis {
    /// An axis from zero to a little above the greatest value.
    pub(crate) fn from_zero(label: &str, values: impl Iterator<Item = f64>) -> Self {
        let greatest = values.fold(0.0, f64::max);
        let max = if greatest > 0.0 { greatest * 1.08 } else { 1.0 };
        let (label, scale) = (label.to_owned(), Scale::Linear);
        Self {
            label,
            scale,
            min: 0.0,
            max,
            marked: Vec::new(),
        }
    }

    /// A logarithmic axis around the values, to the next 1, 2 or 5 on either side.
    pub(crate) fn log(label: &str, values: impl Iterator<Item = f64>) -> Self {
        let (least, greatest) = values
            .filter(|v| *v > 0.0 && v.is_finite())
            .fold((f64::INFINITY, 0.0_f64), |(a, b), v| (a.min(v), b.max(v)));
        let (least, greatest) = if least <= greatest {
            (least, greatest)
        } else {
            (1.0, 10.0)
        };
        let min = steps(least / 10.0, least).last().copied().unwrap_or(least);
        let max = steps(greatest * 1.000_001, greatest * 10.0)
            .first()
            .copied()
            .unwrap_or(greatest);
        let (label, scale) = (label.to_owned(), Scale::Log);
        Self {
            label,
            scale,
            min,
            max,
            marked: Vec::new(),
        }
    }

    /// A logarithmic axis a little wider than the values, which are written on it.
    pub(crate) fn marked(label: &str, values: &[f64]) -> Self {
        let (least, greatest) = values
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(a, b), v| (a.min(*v), b.max(*v)));
        let (label, scale, marked) = (label.to_owned(), Scale::Log, values.to_vec());
        Self {
            label,
            scale,
            min: least / 1.1,
            max: greatest * 1.1,
            marked,
        }
    }

    /// Position of a value on the axis, from 0 to 1.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let at = match self.scale {
            Scale::Linear => (value - self.min) / (self.max - self.min),
            Scale::Log => (value.max(self.min) / self.min).ln() / (self.max / self.min).ln(),
        };
        at.clamp(0.0, 1.0)
    }

    /// The values written on it, about `count` of them.
    pub(crate) fn ticks(&self, count: usize) -> Vec<f64> {
        match self.scale {
            _ if !self.marked.is_empty() => self.marked.clone(),
            Scale::Linear => linear_ticks(self.min, self.max, count),
            Scale::Log => {
                let all = steps(self.min * 0.999_999, self.max * 1.000_001);
                let decades: Vec<f64> = all.iter().copied().filter(|v| is_power(*v)).collect();
                if all.len() <= count + count / 2 || decades.len() < 2 {
                    all
                } else {
                    decades
                }
            }
        }
    }

    /// A value as it is written beside the axis.
    pub(crate) fn tell(value: f64) -> String {
        let text = match value.abs() {
            v if v >= 1e9 => format!("{:.1}G", value / 1e9),
            v if v >= 1e6 => format!("{:.1}M", value / 1e6),
            v if v >= 1e4 => format!("{:.0}k", value / 1e3),
            v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
            v if v >= 1.0 => format!("{value:.1}"),
            v if v >= 0.1 => format!("{value:.2}"),
            _ => format!("{value:.3}"),
        };
        match text.split_once('.') {
            Some((whole, rest)) => {
                let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit());
                let digits = rest[..rest.len() - unit.len()].trim_end_matches('0');
                if digits.is_empty() {
                    format!("{whole}{unit}")
                } else {
                    format!("{whole}.{digits}{unit}")
                }
            }
            None => text,
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (from, to) = (f64::from(limit.0), f64::from(limit.1));
        // Pixels: whole numbers within the limits, which are i32.
        #[allow(clippy::cast_possible_truncation, reason = "it lies between two i32")]
        let at = (from + (to - from) * self.place(*value)).round() as i32;
        at
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        self.ticks(hint.max_num_points().min(8))
    }

    fn range(&self) -> Range<f64> {
        self.min..self.max
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        Self::tell(*value)
    }
}

/// All of 1, 2 and 5 times a power of ten between the two.
fn steps(min: f64, max: f64) -> Vec<f64> {
    let mut out = Vec::new();
    let first = min.log10().floor();
    for decade in 0..40_i32 {
        for step in [1.0, 2.0, 5.0] {
            let value = step * 10_f64.powf(first + f64::from(decade));
            if value >= min && value <= max {
                out.push(value);
            }
        }
    }
    out
}

fn is_power(value: f64) -> bool {
    let log = value.log10();
    (log - log.round()).abs() < 1e-6
}

fn linear_ticks(min: f64, max: f64, count: usize) -> Vec<f64> {
    let rough = (max - min) / f64::from(u32::try_from(count.max(1)).unwrap_or(10));
    let step = steps(rough * 0.999, rough * 10.0).first().copied().unwrap_or(rough);
    let mut out = Vec::new();
    let mut value = (min / step).ceil() * step;
    while value <= max && step > 0.0 {
        out.push(value);
        value += step;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_axis_holds_its_values_between_round_numbers() {
        let axis = Axis::log("latency, ms", [0.34, 17.0, 201.0].into_iter());
        assert_eq!((axis.min, axis.max), (0.2, 500.0));
        assert!(axis.place(0.2) == 0.0 && axis.place(500.0) == 1.0 && axis.place(10.0) > axis.place(9.0));
        assert_eq!(axis.ticks(6), [1.0, 10.0, 100.0]);
        assert_eq!(
            Axis::log("", [3.0, 40.0].into_iter()).ticks(6),
            [2.0, 5.0, 10.0, 20.0, 50.0]
        );
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_ticks() {
        let axis = Axis::from_zero("requests a second", [3.0, 46.0].into_iter());
        assert_eq!(axis.ticks(5), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(Axis::from_zero("", [].into_iter()).max, 1.0);
    }

    #[test]
    fn numbers_are_told_without_needless_digits() {
        let told = [0.0, 0.05, 0.5, 2.0, 2.5, 250.0, 25_000.0, 1_500_000.0].map(Axis::tell);
        assert_eq!(told, ["0", "0.05", "0.5", "2", "2.5", "250", "25k", "1.5M"]);
    }
}

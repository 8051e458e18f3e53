//! Seeded random numbers (splitmix64) and the distributions of the trace. Each is computed by its inverse or by a sum,
//! so that a seed gives the same trace everywhere.

/// A source of numbers.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Another source, with numbers of its own.
    pub(super) fn split(&mut self) -> Self {
        Self(self.next())
    }

    /// Evenly between 0 and 1, both excluded.
    pub(super) fn uniform(&mut self) -> f64 {
        ((self.next() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// Evenly between two numbers.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Exponentially distributed, with mean one.
    fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }

    /// Normally distributed, with mean zero and variance one (Box and Muller).
    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Lognormally distributed, by mean and deviation of its logarithm.
    pub(super) fn lognormal(&mut self, mean: f64, deviation: f64) -> f64 {
        (mean + deviation * self.normal()).exp()
    }

    /// The Burr distribution (type XII) with shapes `c` and `k`.
    pub(super) fn burr(&mut self, c: f64, k: f64, scale: f64) -> f64 {
        scale * (self.uniform().powf(-1.0 / k) - 1.0).powf(1.0 / c)
    }

    /// The sum of `steps` exponentials, with mean one: its coefficient of variation is one over the root of `steps`.
    pub(super) fn erlang(&mut self, steps: u32) -> f64 {
        (0..steps).map(|_| self.exponential()).sum::<f64>() / f64::from(steps)
    }
}

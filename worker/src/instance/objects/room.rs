//! Limits of inspections of instances. Anybody who may read a function can ask for one, and a function has as many
//! objects as it likes.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_wire::{ApiError, ErrorCode, InstanceId};

/// Maximum number of inspections at once on this worker.
const AT_ONCE: usize = 2;
/// Maximum number of objects of all processes together that are looked at one by one.
const OBJECTS_MAX: usize = 20_000;
/// How long an inspection may take.
const LIMIT: Duration = Duration::from_secs(3);

/// The inspections in progress. One instance has at most one.
pub(super) struct Inspections(Mutex<Vec<InstanceId>>);

/// An inspection in progress. It ends when dropped.
pub(super) struct Inspection<'a> {
    looks: &'a Inspections,
    instance: InstanceId,
}

impl Inspections {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Begins an inspection.
    ///
    /// # Errors
    /// If this instance is being inspected already, or too many others are.
    pub(super) fn begin(&self, instance: &InstanceId) -> Result<Inspection<'_>, ApiError> {
        let mut looks = self.0.lock();
        if looks.len() >= AT_ONCE || looks.contains(instance) {
            let message = "the worker is inspecting this instance, or others, already: try again in a few seconds";
            return Err(ApiError::new(ErrorCode::Throttled, message));
        }
        looks.push(instance.clone());
        Ok(Inspection {
            looks: self,
            instance: instance.clone(),
        })
    }
}

impl Drop for Inspection<'_> {
    fn drop(&mut self) {
        self.looks.0.lock().retain(|instance| *instance != self.instance);
    }
}

/// What one inspection may still do.
pub(super) struct InspectionBudget {
    until: Instant,
    objects: usize,
    left_out: u64,
}

impl InspectionBudget {
    pub(super) fn new() -> Self {
        Self::of(OBJECTS_MAX, LIMIT)
    }

    pub(super) fn of(objects: usize, limit: Duration) -> Self {
        Self {
            until: Instant::now() + limit,
            objects,
            left_out: 0,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Takes room for an object. Returns whether there is any.
    pub(super) fn take(&mut self) -> bool {
        let is_there = self.objects > 0 && !self.is_over();
        self.objects = self.objects.saturating_sub(1);
        is_there
    }

    /// Counts objects that are not looked at.
    pub(super) fn leave_out(&mut self, objects: u64) {
        self.left_out = self.left_out.saturating_add(objects);
    }

    /// Returns the number of objects that were not looked at, as far as it is known.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_looked_at_once_at_a_time_and_a_worker_looks_at_few() {
        let [one, two, three]: [InstanceId; 3] = std::array::from_fn(|_| InstanceId::generate());
        let looks = Inspections::new();
        let refused = |instance| looks.begin(instance).err().map(|error| error.code);
        let first = looks.begin(&one).unwrap();
        assert_eq!(refused(&one), Some(ErrorCode::Throttled));
        let second = looks.begin(&two).unwrap();
        assert_eq!(refused(&three), Some(ErrorCode::Throttled));
        drop(first);
        assert_eq!(refused(&two), Some(ErrorCode::Throttled));
        assert_eq!(refused(&one), None);
        assert_eq!(refused(&three), None);
        drop(second);
        assert_eq!(refused(&two), None);
    }
}

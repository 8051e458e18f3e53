//! Limits how much of requests' bodies the gateway holds in memory, over all clients.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Block size in which memory is counted, bytes.
const BLOCK: usize = 4 << 10;

/// The memory available for bodies.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    blocks: Arc<Semaphore>,
    all: usize,
}

/// A body's share of it, returned when dropped.
#[derive(Debug)]
pub(crate) struct Room {
    budget: Budget,
    held: Option<OwnedSemaphorePermit>,
}

/// No memory is left.
#[derive(Debug, thiserror::Error)]
#[error("as much of requests' bodies is held in memory as may be")]
pub(crate) struct Exhausted;

impl Budget {
    pub(crate) fn new(bytes: u64) -> Self {
        let all = usize::try_from(bytes / BLOCK as u64).unwrap_or(usize::MAX);
        let all = all.clamp(1, u32::MAX as usize).min(Semaphore::MAX_PERMITS);
        Self {
            blocks: Arc::new(Semaphore::new(all)),
            all,
        }
    }

    /// An empty share.
    pub(crate) fn room(&self) -> Room {
        Room {
            budget: self.clone(),
            held: None,
        }
    }

    /// Bytes that are held.
    pub(crate) fn used(&self) -> u64 {
        (self.all.saturating_sub(self.blocks.available_permits()) * BLOCK) as u64
    }
}

impl Room {
    /// Grows the share to `bytes` in all.
    ///
    /// # Errors
    /// If there is not enough memory. What is held stays held.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let blocks = bytes.div_ceil(BLOCK);
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(blocks.saturating_sub(held)).map_err(|_| Exhausted)?;
        if more == 0 {
            return Ok(());
        }
        let more = self.budget.blocks.clone().try_acquire_many_owned(more);
        let more = more.map_err(|_| Exhausted)?;
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_hold_is_never_more_than_there_is_and_comes_back() {
        let budget = Budget::new(10 * BLOCK as u64);
        let mut rooms: Vec<Room> = (0..4).map(|_| budget.room()).collect();
        for room in &mut rooms[..3] {
            room.grow_to(1).unwrap();
            room.grow_to(3 * BLOCK).unwrap();
            room.grow_to(2 * BLOCK).unwrap();
        }
        assert_eq!(budget.used(), 9 * BLOCK as u64);
        assert!(rooms[3].grow_to(BLOCK + 1).is_err());
        rooms[3].grow_to(BLOCK).unwrap();
        assert_eq!(budget.used(), 10 * BLOCK as u64);
        assert!(rooms[0].grow_to(3 * BLOCK + 1).is_err());
        drop(rooms);
        assert_eq!(budget.used(), 0);
    }
}

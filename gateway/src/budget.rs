//! Limits how much of requests' bodies the gateway holds in memory: over all clients, and for each. The last of it is
//! for small bodies, so that whoever sends large ones keeps nobody away who asks for little.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clients::ClientPermit;

/// Block size in which memory is counted, bytes.
const BLOCK: usize = 4 << 10;
/// The largest body that is a small one, in blocks.
const SMALL: usize = (64 << 10) / BLOCK;
/// A client may have one of so many parts of all.
const OF_CLIENT: usize = 4;
/// One of so many parts of all is for small bodies.
const OF_SMALL: usize = 8;

/// The memory available for bodies.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    blocks: Arc<Semaphore>,
    all: usize,
}

/// A body's share of it, returned when dropped.
#[derive(Debug)]
pub(crate) struct ReservedMemory {
    budget: Budget,
    client: Option<Arc<ClientPermit>>,
    held: Option<OwnedSemaphorePermit>,
}

/// Why there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Exhausted {
    #[error("as much of requests' bodies is held in memory as may be")]
    All,
    #[error("as much of one client's bodies is held in memory as may be")]
    Client,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Self {
        let all = usize::try_from(bytes / BLOCK as u64).unwrap_or(usize::MAX);
        let all = all.clamp(1, u32::MAX as usize).min(Semaphore::MAX_PERMITS);
        Self {
            blocks: Arc::new(Semaphore::new(all)),
            all,
        }
    }

    /// An empty share for a body of this client.
    pub(crate) fn room(&self, client: Option<&Arc<ClientPermit>>) -> ReservedMemory {
        ReservedMemory {
            budget: self.clone(),
            client: client.cloned(),
            held: None,
        }
    }

    /// Bytes that are held.
    pub(crate) fn used(&self) -> u64 {
        (self.all.saturating_sub(self.blocks.available_permits()) * BLOCK) as u64
    }
}

impl ReservedMemory {
    /// Grows the share to `bytes` in all.
    ///
    /// # Errors
    /// If there is not enough memory. What is held stays held.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let Budget { blocks, all } = &self.budget;
        let wanted = bytes.div_ceil(BLOCK);
        let more = u32::try_from(wanted.saturating_sub(self.held())).map_err(|_| Exhausted::All)?;
        if more == 0 {
            return Ok(());
        }
        // Several at the same moment may each have what is left for one. It does not matter.
        let for_small = if wanted > SMALL { all / OF_SMALL } else { 0 };
        if blocks.available_permits() < for_small + more as usize {
            return Err(Exhausted::All);
        }
        let most = u32::try_from(all.div_ceil(OF_CLIENT)).unwrap_or(u32::MAX);
        if let Some(client) = &self.client
            && !client.take_blocks(more, most)
        {
            return Err(Exhausted::Client);
        }
        let Ok(taken) = blocks.clone().try_acquire_many_owned(more) else {
            self.client.iter().for_each(|client| client.give_blocks(more));
            return Err(Exhausted::All);
        };
        match &mut self.held {
            Some(held) => held.merge(taken),
            None => self.held = Some(taken),
        }
        Ok(())
    }

    /// Number of blocks held.
    fn held(&self) -> usize {
        self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        let held = u32::try_from(self.held()).unwrap_or(u32::MAX);
        self.client.iter().for_each(|client| client.give_blocks(held));
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::HeaderMap;

    use super::*;
    use crate::clients::{ClientLimits, Clients};

    #[test]
    fn what_all_hold_is_never_more_than_there_is_and_comes_back() {
        let budget = Budget::new(10 * BLOCK as u64);
        let mut rooms: Vec<ReservedMemory> = (0..4).map(|_| budget.room(None)).collect();
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

    #[test]
    fn one_client_holds_a_quarter_and_large_bodies_leave_an_eighth() {
        const SIXTEEN: usize = SMALL * BLOCK;
        let budget = Budget::new(16 * SIXTEEN as u64);
        let clients = Clients::new(ClientLimits::default(), 64);
        let request = |n: u8| {
            let address = IpAddr::from([203, 0, 113, n]);
            Arc::new(clients.request(address, &HeaderMap::new()).unwrap().unwrap())
        };
        let greedy = request(1);
        let mut rooms: Vec<ReservedMemory> = (0..5).map(|_| budget.room(Some(&greedy))).collect();
        for room in &mut rooms[..4] {
            room.grow_to(SIXTEEN).unwrap();
        }
        assert_eq!(rooms[4].grow_to(1), Err(Exhausted::Client));
        for n in 2..4 {
            let mut room = budget.room(Some(&request(n)));
            room.grow_to(4 * SIXTEEN).unwrap();
            rooms.push(room);
        }
        // Of sixteen parts twelve are held, and two are for small bodies.
        let mut last = budget.room(Some(&request(4)));
        last.grow_to(2 * SIXTEEN).unwrap();
        assert_eq!(last.grow_to(2 * SIXTEEN + 1), Err(Exhausted::All));
        budget.room(Some(&request(5))).grow_to(SIXTEEN).unwrap();
        drop((rooms, last));
        assert_eq!(budget.used(), 0);
        budget.room(Some(&greedy)).grow_to(4 * SIXTEEN).unwrap();
    }
}

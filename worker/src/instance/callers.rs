//! Who calls other functions: the sandboxes of this host by their addresses, as the router sees them. The router drops
//! what comes from a sandbox with another address than its own, so an address is an identity.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rekindle_wire::{FunctionId, InstanceId};
use tokio::sync::Semaphore;

use super::chain::CallChains;
use super::lifecycle::Instance;
use crate::host::sandbox::Sandbox;

/// Maximum number of calls that one instance waits for at once.
pub(crate) const CALLS_EACH: usize = 64;
/// Maximum number of connections that one instance has for them.
const CONNECTIONS_EACH: usize = 128;
/// Number of known sandboxes from which those that are gone are looked for.
const FORGET_AT: usize = 256;

/// A function's instance, as the caller of others.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) function: FunctionId,
    pub(crate) instance: InstanceId,
    /// What led to its requests.
    pub(crate) chains: CallChains,
    /// Places for its calls.
    pub(crate) places: Arc<Semaphore>,
    /// Places for its connections.
    pub(crate) connections: Arc<Semaphore>,
    sandbox: Weak<Sandbox>,
}

/// The sandboxes that can call, by address.
#[derive(Debug, Default)]
pub struct Callers {
    known: Mutex<HashMap<IpAddr, Arc<Caller>>>,
}

impl Callers {
    /// Records whose sandbox has this address, before anything of the function runs there.
    pub(super) fn add(&self, address: IpAddr, instance: &Instance, sandbox: &Arc<Sandbox>) {
        let caller = Caller {
            function: instance.spec.function.clone(),
            instance: instance.id.clone(),
            chains: instance.chains.clone(),
            places: Arc::new(Semaphore::new(CALLS_EACH)),
            connections: Arc::new(Semaphore::new(CONNECTIONS_EACH)),
            sandbox: Arc::downgrade(sandbox),
        };
        let mut known = self.known.lock();
        if known.len() >= FORGET_AT {
            known.retain(|_, caller| caller.is_there());
        }
        known.insert(address, Arc::new(caller));
    }

    /// Returns whose sandbox has this address. `None` if it is gone.
    pub(crate) fn at(&self, address: IpAddr) -> Option<Arc<Caller>> {
        let known = self.known.lock();
        known.get(&address).filter(|caller| caller.is_there()).cloned()
    }
}

impl Caller {
    /// Whether its sandbox is. Another may have the address later.
    pub(crate) fn is_there(&self) -> bool {
        self.sandbox.strong_count() > 0
    }
}

//! Eviction of idle memory. Memory that an instance has not touched for a while is evicted without its help, and comes
//! back by fault (docs/decisions/0019-idle-memory.md). Written pages go to a compressed swap, and clean pages leave the
//! templates.
//!
//! ```text
//!  evictor ─each period─> look (kernel) ─> choose (policy) ─> evict in slices (kernel) ─> swap: the
//!     ▲                                                                │               host's, or zram
//!     └─ what came back was missed: it is left alone, longer each time ┘
//! ```

pub mod canary;
pub mod damon;
mod evictor;
mod idle_memory;
pub mod kernel;
pub mod policy;
mod settings;
pub mod swap;
pub mod throttle;
pub mod visit;
mod watcher;
pub mod zram;

pub use evictor::Evictor;
pub use idle_memory::{EvictionCounts, IdleMemory};
pub use settings::{IdleSettings, IdleWatch};

//! The roles of a platform, and where each of its processes listens.

/// The addresses in the guide, in the order of [`Role`].
pub(super) const ADDRESSES: [&str; 3] = ["10.0.0.1:8081", "10.0.0.2:8082", "10.0.0.3:8080"];
/// Last parts of the addresses of the second worker, scheduler and gateway.
const MORE_WORKERS: u8 = 20;
const MORE_SCHEDULERS: u8 = 80;
const MORE_GATEWAYS: u8 = 120;

/// A role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// `fn scheduler`.
    Scheduler,
    /// `fn worker`.
    Worker,
    /// `fn gateway`.
    Gateway,
}

impl Role {
    /// All roles, in the order in which they are started.
    pub const ALL: [Self; 3] = [Self::Scheduler, Self::Worker, Self::Gateway];

    /// One of several with this role, counted from 0.
    pub const fn nth(self, number: u8) -> Place {
        Place { role: self, number }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Worker => "worker",
            Self::Gateway => "gateway",
        }
    }

    pub(super) fn port(self) -> u16 {
        let address = ADDRESSES[self as usize];
        address[address.find(':').unwrap() + 1..].parse().unwrap()
    }
}

/// One process of the platform, with its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub(super) role: Role,
    pub(super) number: u8,
}

impl From<Role> for Place {
    fn from(role: Role) -> Self {
        role.nth(0)
    }
}

impl Place {
    pub(super) fn name(self) -> String {
        format!("{}-{}", self.role.name(), self.number)
    }

    /// The last part of its address.
    pub(super) fn last(self) -> u8 {
        match (self.role, self.number) {
            (role, 0) => role as u8 + 1,
            (Role::Gateway, number) => MORE_GATEWAYS + number,
            (Role::Scheduler, number) => MORE_SCHEDULERS + number,
            (Role::Worker, number) => MORE_WORKERS + number,
        }
    }
}

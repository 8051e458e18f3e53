//! What gateways are told of functions.

use serde::{Deserialize, Serialize};

use crate::api::Alias;
use crate::ids::FunctionId;
use crate::manifest::Auth;

/// What functions' aliases name, so that a gateway can choose a version for each invocation, and who may invoke them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoutesAnswer {
    /// The scheduler's lead. Revisions of different leads have nothing in common.
    pub epoch: String,
    /// The revision that the gateway has when it has applied this.
    pub revision: u64,
    /// The functions that have changed since the gateway's revision. All of them if it has none of this epoch.
    pub functions: Vec<FunctionRoutes>,
}

/// What a gateway knows of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionRoutes {
    /// The function.
    pub function: FunctionId,
    /// Its aliases.
    pub aliases: Vec<Alias>,
    /// What its callers must show. None if the function is gone, or from an earlier version of the scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
}

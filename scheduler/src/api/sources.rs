//! Sources of events: listed, and reported on by their readers.

use rekindle_wire::FunctionId;
use rekindle_wire::api::SourceInfo;
use rekindle_wire::interface::Call;
use rekindle_wire::interface::users::{ListSources, ReportSources};

use super::known;
use crate::refusal::Refused;
use crate::sources;
use crate::state::Scheduler;

pub(super) async fn list(scheduler: Scheduler, call: Call<ListSources>) -> Result<Vec<SourceInfo>, Refused> {
    let namespace = known(&scheduler, call.at.namespace)?;
    let function = call.at.function.map(|name| FunctionId::new(&namespace, &name));
    if let Some(function) = &function {
        let catalog = &scheduler.state().catalog;
        if !catalog.has(function) {
            return Err(catalog.missing(function));
        }
    }
    Ok(sources::list(&scheduler, namespace.as_str(), function.as_ref()))
}

pub(super) async fn report(scheduler: Scheduler, call: Call<ReportSources>) -> Result<Vec<SourceInfo>, Refused> {
    let namespace = known(&scheduler, call.at.namespace)?;
    sources::report(&scheduler, namespace.as_str(), call.body)?;
    Ok(sources::list(&scheduler, namespace.as_str(), None))
}

//! `fn versions`.

use std::process::ExitCode;

use anyhow::Result;
use rekindle_wire::api::{VersionState, VersionSummary};

use super::describe::when;
use crate::args::DescribeArgs;
use crate::client::Client;
use crate::show;

/// Prints every version that is kept, newest first.
pub(crate) async fn run(client: &Client, args: &DescribeArgs) -> Result<ExitCode> {
    let versions = client.versions(&client.function_id(&args.name)).await?;
    if args.listing.json {
        show::print_json(&versions)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = show::table(["VERSION", "CREATED", "STATE", "TRAFFIC", "ALIASES", "SNAPSHOT", "SIZE"]);
    for v in &versions {
        let aliases: Vec<&str> = v.aliases.iter().map(|alias| alias.as_str()).collect();
        let or_none = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
        table.add_row([
            v.version.to_string(),
            when(v.created_unix_s),
            state(v).to_owned(),
            or_none((v.traffic_percent > 0.0).then(|| percent(v.traffic_percent))),
            or_none(Some(aliases.join(", "))),
            or_none(v.snapshot.as_ref().map(ToString::to_string)),
            or_none(v.stored_bytes.map(show::bytes)),
        ]);
    }
    show::print_table(&table);
    Ok(ExitCode::SUCCESS)
}

/// A version's state in a word: of those that can serve, some do.
fn state(version: &VersionSummary) -> &'static str {
    match version.state {
        VersionState::Live if version.traffic_percent == 0.0 => "ready",
        state => state.as_str(),
    }
}

/// A share with at most two digits after the point.
pub(super) fn percent(percent: f64) -> String {
    let digits = format!("{percent:.2}");
    format!("{}%", digits.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn a_share_is_shown_without_needless_digits() {
        assert_eq!(
            [100.0, 12.5, 100.0 / 3.0, 0.1].map(percent),
            ["100%", "12.5%", "33.33%", "0.1%"]
        );
    }
}

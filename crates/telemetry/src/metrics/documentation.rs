//! Keeps `docs/reference/metrics.md` consistent with the metrics that a role registers.

use std::path::Path;

use super::description::Kind;
use super::registry::Registry;

/// If set, the document is written instead of checked.
const UPDATE: &str = "REKINDLE_UPDATE_DOCS";

/// Lines of a Markdown table, one for each metric in the order of its registration.
fn table(registry: &Registry) -> String {
    let mut table = "| Prometheus | OpenTelemetry | type | labels | meaning |\n|---|---|---|---|---|\n".to_owned();
    for (desc, kind) in registry.descriptions() {
        let total = if kind == Kind::Counter { "_total" } else { "" };
        let (name, prometheus, unit) = (desc.name, desc.prometheus_name() + total, desc.unit);
        let labels = desc.labels.iter();
        let labels: Vec<String> = labels
            .map(|l| format!("`{}`", super::description::prometheus(l)))
            .collect();
        let (kind, labels, help) = (kind.as_str(), labels.join(", "), desc.help);
        table += &format!("| `{prometheus}` | `{name}`, {unit} | {kind} | {labels} | {help} |\n");
    }
    table
}

/// Checks that the document at `path` has exactly this registry's table, between the lines
/// `<!-- metrics of the ROLE -->` and `<!-- end -->`. With `REKINDLE_UPDATE_DOCS=1` in the environment, writes it
/// there.
///
/// # Errors
/// What differs, and what to do.
pub fn documented(registry: &Registry, path: &Path) -> Result<(), String> {
    let (role, shown) = (registry.role(), path.display());
    let text = std::fs::read_to_string(path).map_err(|e| format!("{shown}: {e}"))?;
    let (begin, end) = (format!("<!-- metrics of the {role} -->\n"), "<!-- end -->");
    let missing = || format!("{shown} has no section {begin}");
    let (before, rest) = text.split_once(&begin).ok_or_else(missing)?;
    let (said, after) = rest.split_once(end).ok_or_else(missing)?;
    let is = table(registry);
    if said == is {
        return Ok(());
    }
    if std::env::var_os(UPDATE).is_some() {
        let written = format!("{before}{begin}{is}{end}{after}");
        return std::fs::write(path, written).map_err(|e| format!("{shown}: {e}"));
    }
    let differs = |one: &str, other: &str| -> Vec<String> {
        let lines = one.lines().filter(|l| !other.lines().any(|o| o == *l));
        lines.map(str::to_owned).collect()
    };
    let (stale, lacking) = (differs(said, &is), differs(&is, said));
    Err(format!(
        "{shown} does not say what the {role} measures: it lacks {lacking:#?} and has {stale:#?}; run the test with \
         {UPDATE}=1 to write it"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::{Counter, Desc};
    use super::*;

    #[test]
    fn a_document_that_says_something_else_is_told_apart() {
        const DESC: Desc = Desc::new("a.b", "{thing}", &["x.y"], "Things.");
        let registry = Registry::new("tester");
        registry.family::<Counter, 1>(&DESC);
        let dir = std::env::temp_dir().join(format!("rekindle-documented-{}", std::process::id()));
        let write = |table: &str| {
            std::fs::write(
                &dir,
                format!("x\n<!-- metrics of the tester -->\n{table}<!-- end -->\n"),
            )
            .unwrap();
            documented(&registry, &dir)
        };
        let right = table(&registry);
        assert!(
            right.ends_with("| `a_b_total` | `a.b`, {thing} | counter | `x_y` | Things. |\n"),
            "{right}"
        );
        assert_eq!(write(&right), Ok(()));
        assert!(write(&right.replace("Things", "Others")).is_err_and(|e| e.contains("Others")));
        std::fs::remove_file(&dir).unwrap();
    }
}

//! The metrics that the dashboard and the alerts name are exported, and each has its row.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper::metrics::{Counted, Metrics, MetricsForm};

use crate::source::{File, assert_found, assert_none, is_word};

#[test]
fn every_metric_of_the_dashboard_and_the_alerts_exists() {
    let exported = exported();
    for path in ["deploy/grafana/lockkeeper.json", "deploy/prometheus/alerts.yml"] {
        assert_none(&unknown_metrics(&File::read(path), &exported));
    }
}

#[test]
fn every_metric_has_its_row_on_the_page_of_operators() {
    assert_none(&without_row(&File::read("docs/operations.md"), &exported()));
}

fn without_row(page: &File, exported: &BTreeSet<String>) -> Vec<String> {
    let row = |name: &&String| !page.text.contains(&format!("\n| `{name}` | "));
    let missing = exported.iter().filter(row);
    missing.map(|name| format!("{}: no row for {name}", page.path)).collect()
}

/// The names of all metrics as a scrape has them.
fn exported() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for scrape in scrapes() {
        names.extend(types(&scrape).map(|(name, _)| name));
    }
    names
}

/// The same with their types and the names of their labels.
pub(crate) fn exported_with_labels() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for scrape in scrapes() {
        for (name, kind) in types(&scrape) {
            let labels: BTreeSet<_> = samples(&scrape, &name).flat_map(labels).collect();
            let labels: Vec<_> = labels.into_iter().filter(|label| *label != "le").collect();
            found.insert(format!("{kind} {name} {}", labels.join(",")).trim_end().to_owned());
        }
    }
    found
}

/// The lines of a metric's values.
fn samples<'a>(scrape: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let of_it = move |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']) || rest.starts_with("_count"))
    };
    scrape.lines().filter(of_it)
}

/// The names of a line's labels.
fn labels(line: &str) -> impl Iterator<Item = &str> {
    let inside = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
    let pairs = inside.map_or("", |(pairs, _)| pairs).split("\",");
    pairs.filter_map(|pair| Some(pair.split_once('=')?.0))
}

/// A scrape of each kind of store, every metric of it counted once.
fn scrapes() -> Vec<String> {
    let mut scrapes = Vec::new();
    for mut metrics in [Metrics::for_embedded(), Metrics::for_redis(), Metrics::for_redlock()] {
        metrics.request("/", "GET", 200);
        for verb in [Counted::Acquire, Counted::Refresh, Counted::Release, Counted::ForceRelease] {
            metrics.outcome(verb, "ok");
        }
        metrics.reloaded("ok", 0);
        drop(metrics.certificate_end());
        metrics.limit("waiters", 1);
        metrics.held("cron/", "released", Duration::ZERO);
        metrics.living("cron/", 0, Duration::ZERO);
        metrics.redis_call("inspect", 0.1);
        metrics.redis_error("timeout");
        metrics.redlock_attempt("granted");
        metrics.redis_up("node", true);
        metrics.redis_evicts("node", false);
        metrics.redis_rerouted("moved");
        metrics.redis_clock_lead("node").set(0.5);
        scrapes.push(metrics.render(MetricsForm::OpenMetrics));
    }
    scrapes
}

/// The metrics of a scrape, each with its type.
fn types(scrape: &str) -> impl Iterator<Item = (String, &str)> {
    let lines = scrape.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    lines.map(|line| match line.split_once(' ').unwrap() {
        (name, kind @ "counter") => (format!("{name}_total"), kind),
        (name, kind @ "info") => (format!("{name}_info"), kind),
        (name, kind) => (name.to_owned(), kind),
    })
}

fn unknown_metrics(page: &File, exported: &BTreeSet<String>) -> Vec<String> {
    let shown = named_metrics(page, exported);
    let unknown = shown.difference(exported);
    unknown.map(|name| format!("{}: there is no metric {name}", page.path)).collect()
}

fn named_metrics(page: &File, exported: &BTreeSet<String>) -> BTreeSet<String> {
    let begins = page.text.match_indices("lockkeeper_").map(|(at, _)| &page.text[at..]);
    let names = begins.filter_map(|rest| rest.split(|letter| !is_word(letter)).next());
    let of_histogram = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"].iter().filter_map(|end| name.strip_suffix(end));
        parts.into_iter().find(|whole| exported.contains(*whole)).map(str::to_owned)
    };
    names.map(|name| of_histogram(name).unwrap_or_else(|| name.to_owned())).collect()
}

#[test]
fn a_metric_without_a_row_is_found() {
    let page = File::planted("a.md", "|---|---|\n| `lockkeeper_a` | Text of `lockkeeper_b`. |\n");
    let exported = ["lockkeeper_a", "lockkeeper_b"].map(str::to_owned).into();
    assert_found(&without_row(&page, &exported), "lockkeeper_b");
}

#[test]
fn an_unknown_metric_is_found() {
    let page = |text| File::planted("a.json", text);
    let exported = ["lockkeeper_a", "lockkeeper_b_total"].map(str::to_owned).into();
    assert_none(&unknown_metrics(&page("lockkeeper_a_bucket{} lockkeeper_b_total"), &exported));
    assert_found(&unknown_metrics(&page("lockkeeper_a lockkeeper_c"), &exported), "lockkeeper_c");
}

//! The metrics that the dashboard and the alerts name are exported.

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

/// The names of all metrics as a scrape has them, every one of them counted once.
fn exported() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
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
        for line in metrics
            .render(MetricsForm::OpenMetrics)
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
        {
            names.insert(match line.split_once(' ').unwrap() {
                (name, "counter") => format!("{name}_total"),
                (name, "info") => format!("{name}_info"),
                (name, _) => name.to_owned(),
            });
        }
    }
    names
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
fn an_unknown_metric_is_found() {
    let page = |text| File::planted("a.json", text);
    let exported = ["lockkeeper_a", "lockkeeper_b_total"].map(str::to_owned).into();
    assert_none(&unknown_metrics(&page("lockkeeper_a_bucket{} lockkeeper_b_total"), &exported));
    assert_found(&unknown_metrics(&page("lockkeeper_a lockkeeper_c"), &exported), "lockkeeper_c");
}
